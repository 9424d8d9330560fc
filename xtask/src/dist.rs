//! Man pages and shell completions, made from the same definitions as `--help`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use clap::CommandFactory;
use clap_complete::{Shell, generate_to};
use flowstone_cli::args::Args;

use crate::config_page;

/// The configuration file of `serve`.
const CONFIG_PAGE: &str = "flowstone.toml.5";

/// Writes them to `man` and `completions` below `target`.
pub fn dist(target: &Path) -> Result<()> {
    let (man, completions) = (target.join("man"), target.join("completions"));
    for folder in [&man, &completions] {
        fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    }
    let command = Args::command().disable_help_subcommand(true);
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        generate_to(shell, &mut command.clone(), "flowstone", &completions)?;
    }
    // One page for the command and one for each subcommand, as `man flowstone-serve` finds them.
    clap_mangen::generate_to(command, &man)?;
    fs::write(man.join(CONFIG_PAGE), config_page::page()?).context(CONFIG_PAGE)?;
    println!("man pages and completions are in {}", target.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_subcommand_has_a_page_and_every_shell_a_completion() {
        let dir = tempfile::tempdir().unwrap();
        dist(dir.path()).unwrap();
        for command in Args::command().get_subcommands() {
            let page = dir.path().join(format!("man/flowstone-{}.1", command.get_name()));
            let text = fs::read_to_string(&page).unwrap();
            assert!(text.contains(".SH SYNOPSIS"), "{} is empty", page.display());
        }
        assert!(dir.path().join("man").join(CONFIG_PAGE).is_file());
        assert_eq!(fs::read_dir(dir.path().join("completions")).unwrap().count(), 3);
    }
}
