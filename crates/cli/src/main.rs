//! `flowstone`: one line for an error, and a status that scripts can rely on.

use std::process::ExitCode;

use clap::Parser;
use flowstone_cli::args::Args;
use flowstone_cli::commands;

fn main() -> ExitCode {
    let args = Args::parse();
    match commands::run(args.command) {
        Ok(status) => status,
        Err(error) => {
            eprintln!("flowstone: {error}");
            ExitCode::FAILURE
        }
    }
}
