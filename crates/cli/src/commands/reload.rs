//! `flowstone reload`

use std::process::ExitCode;

use flowstone_block::{Printable, Result};
use flowstone_control::{Client, Command};

use super::{only_print_from_now_on, print_json};
use crate::args::Query;
use crate::output::out;

pub fn run(args: &Query) -> Result<ExitCode> {
    let done = Client::connect(&args.daemon.control)?.run(&Command::Reload)?;
    only_print_from_now_on();
    if args.json {
        print_json(&done);
        return Ok(ExitCode::SUCCESS);
    }
    for (what, lines) in done.as_object().into_iter().flatten() {
        for line in lines.as_array().into_iter().flatten() {
            out!("{}: {}", what.replace('_', " "), Printable(line.as_str().unwrap_or("-")));
        }
    }
    Ok(ExitCode::SUCCESS)
}
