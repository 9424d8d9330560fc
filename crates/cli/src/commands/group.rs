//! `flowstone group set`

use std::process::ExitCode;

use flowstone_block::Result;
use flowstone_daemon::{Client, Command};

use super::{limit_text, only_print_from_now_on};
use crate::args::SetGroup;

pub fn set(args: &SetGroup) -> Result<ExitCode> {
    let (group, limit) = (args.group.clone(), args.limit.to_string());
    let now = Client::connect(&args.daemon.control)?.run(&Command::SetGroup { group, limit })?;
    only_print_from_now_on();
    println!("{}: limit {}", args.group, limit_text(&now["limit"]));
    Ok(ExitCode::SUCCESS)
}
