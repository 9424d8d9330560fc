//! The `flowstone-guest` command.

pub mod args;
mod cache;
mod clients;
mod units;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Args, Command};

/// What went wrong, in one line: what failed, why, and what to try.
type Failure = String;

/// Runs the command that was typed.
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
