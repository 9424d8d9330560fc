//! The `flowstone` command: its arguments ([`args`]) and their implementation ([`main`]). Man pages
//! and shell completions are generated from the same definitions.

pub mod args;
mod commands;
mod progress;

use std::process::ExitCode;

use clap::Parser;
use flowstone_fileio::FileOpener;

/// Runs the command line: prints one line for an error, and returns a status that scripts can rely
/// on. `opener` opens the files of served images.
pub fn main(opener: FileOpener) -> ExitCode {
    let args = args::Args::parse();
    match commands::run(args.command, opener) {
        Ok(status) => status,
        Err(error) => {
            eprintln!("flowstone: {error}");
            ExitCode::FAILURE
        }
    }
}
