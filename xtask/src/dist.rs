//! Man pages and shell completions, from the same definitions as `--help`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use clap::{Command, CommandFactory};
use clap_complete::{Shell, generate_to};
use flowstone_cli::args::Args;

use crate::config_page;

/// The configuration file of `serve`.
const CONFIG_PAGE: &str = "flowstone.toml.5";

/// Returns the programs that are installed.
fn commands() -> [Command; 2] {
    let commands = [Args::command(), flowstone_guest::args::Args::command()];
    commands.map(|command| command.disable_help_subcommand(true))
}

/// Writes man pages and completions to `man` and `completions` below `target`.
pub fn dist(target: &Path) -> Result<()> {
    let (man, completions) = (target.join("man"), target.join("completions"));
    for folder in [&man, &completions] {
        fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    }
    for command in commands() {
        let name = command.get_name().to_owned();
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            generate_to(shell, &mut command.clone(), &name, &completions)?;
        }
        // A page for the command and one for each subcommand, as in `man flowstone-serve`.
        clap_mangen::generate_to(command, &man)?;
    }
    fs::write(man.join(CONFIG_PAGE), config_page::page()).context(CONFIG_PAGE)?;
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
        for program in commands() {
            for command in program.get_subcommands() {
                let name = format!("man/{}-{}.1", program.get_name(), command.get_name());
                let text = fs::read_to_string(dir.path().join(&name)).unwrap();
                assert!(text.contains(".SH SYNOPSIS"), "{name} is empty");
            }
        }
        assert!(dir.path().join("man").join(CONFIG_PAGE).is_file());
        assert_eq!(fs::read_dir(dir.path().join("completions")).unwrap().count(), 6);
    }
}
