//! `flowstone disk set` and `flowstone group set`

use std::process::ExitCode;

use flowstone_block::Result;
use flowstone_daemon::{Client, Command, DiskChange};

use super::{disk_meant_by, limit_text, only_print_from_now_on};
use crate::args::{SetDisk, SetGroup};

pub fn disk(args: &SetDisk) -> Result<ExitCode> {
    let change = DiskChange {
        limit: args.share.limit.map(|limit| limit.to_string()),
        weight: args.share.weight.map(|weight| weight.get()),
        ..DiskChange::default()
    };
    let command = Command::Change(disk_meant_by(&args.disk), change);
    let now = Client::connect(&args.control)?.run(&command)?;
    only_print_from_now_on();
    let name = args.disk.display();
    println!("{name}: limit {}, weight {}", limit_text(&now["limit"]), now["weight"]);
    Ok(ExitCode::SUCCESS)
}

pub fn group(args: &SetGroup) -> Result<ExitCode> {
    let (group, limit) = (args.group.clone(), args.limit.to_string());
    let now = Client::connect(&args.control)?.run(&Command::SetGroup { group, limit })?;
    only_print_from_now_on();
    println!("{}: limit {}", args.group, limit_text(&now["limit"]));
    Ok(ExitCode::SUCCESS)
}
