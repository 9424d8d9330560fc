//! The `flowstone` command: its arguments ([`args`]) and their implementation ([`main`]). Man pages
//! and shell completions are generated from the same definitions.

#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod args;
mod commands;
mod output;
mod progress;

use std::process::ExitCode;

use clap::Parser;
use flowstone_fileio::FileOpener;

use self::output::tell;

/// Runs the command line: prints one line for an error, and returns a status that scripts can rely
/// on. `opener` opens the files of served images.
pub fn main(opener: FileOpener) -> ExitCode {
    let args = args::Args::parse();
    let status = commands::run(args.command, opener);
    let printed = output::end();
    status.and_then(|status| printed.map(|()| status)).unwrap_or_else(|error| {
        tell!("{error}");
        ExitCode::FAILURE
    })
}
