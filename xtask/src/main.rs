//! Maintenance tasks of the tree that are not part of the product.
//!
//! * `cargo xtask dist`: man pages and shell completions into `target/dist`.
//! * `cargo xtask tidy`: rules of the tree that no compiler checks; a test runs it too.
//! * `cargo xtask mutants [NAME-PART…]`: runs the tests against each protocol mutant, and writes
//!   the table in docs/testing.md if none was left out.

mod config_page;
mod dist;
mod files;
mod mutants;
mod tidy;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.split_first() {
        Some((task, [])) if task == "dist" => dist::dist(&workspace().join("target/dist")),
        Some((task, [])) if task == "tidy" => tidy::run(&workspace()),
        Some((task, wanted)) if task == "mutants" => mutants::run(&workspace(), wanted),
        _ => bail!("usage: cargo xtask dist | tidy | mutants [NAME-PART...]"),
    }
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(PathBuf::new, Path::to_owned)
}
