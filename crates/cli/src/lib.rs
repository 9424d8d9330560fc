//! The `flowstone` command: what can be typed ([`args`]) and what is done about it
//! ([`main`]). Man pages and shell completions are made from the same definitions.

pub mod args;
mod commands;
mod progress;

use std::process::ExitCode;

use clap::Parser;
use flowstone_fileio::FileOpener;

/// Does what this process was called for: one line for an error, and a status that scripts can rely
/// on. `opener` opens the files of images that are served.
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
