//! The `flowstone-guest` command.

pub mod args;
mod cache;
mod clients;
mod units;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Args, Command};

/// A failure in one line: the operation, its reason, and advice.
type Failure = String;

/// Runs the command of the command line.
pub fn main() -> ExitCode {
    let done = match Args::parse().command {
        Command::Cache(args) => cache::run(&args),
        Command::Stats(args) => clients::stats(&args),
        Command::Record(args) => clients::record(&args),
        Command::Drop(args) => clients::drop(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("flowstone-guest: {failure}");
            ExitCode::FAILURE
        }
    }
}
