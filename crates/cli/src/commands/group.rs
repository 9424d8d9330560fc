//! `flowstone group`

use flowstone_block::{Error, Printable, Result};
use flowstone_control::{Client, Command};
use serde_json::Value;
use toml::Table;

use super::{limit_text, only_print_from_now_on, print_answer, text};
use crate::args::{AddGroup, GroupCommand, Query, RemoveGroup, SetGroup};
use crate::output::out;

pub fn run(command: GroupCommand) -> Result<()> {
    match command {
        GroupCommand::Add(args) => add(&args),
        GroupCommand::List(args) => list(&args),
        GroupCommand::Remove(args) => remove(&args),
        GroupCommand::Set(args) => set(&args),
    }
}

fn add(args: &AddGroup) -> Result<()> {
    let limit = args.together.limit().map_err(|why| {
        let what = format!("group add {}", args.group);
        Error::invalid(what, why, "see `flowstone help group add`")
    })?;
    let keys: Table = [("limit".to_owned(), limit.to_string().into())].into_iter().collect();
    let command = Command::AddGroup(args.group.clone(), keys);
    print_limit(&args.group, &Client::connect(&args.daemon.control)?.run(&command)?);
    Ok(())
}

fn set(args: &SetGroup) -> Result<()> {
    let (group, limit) = (args.group.clone(), args.limit.to_string());
    let now = Client::connect(&args.daemon.control)?.run(&Command::SetGroup { group, limit })?;
    print_limit(&args.group, &now);
    Ok(())
}

fn print_limit(name: &str, group: &Value) {
    only_print_from_now_on();
    out!("{}: limit {}", Printable(name), limit_text(&group["limit"]));
}

fn remove(args: &RemoveGroup) -> Result<()> {
    Client::connect(&args.daemon.control)?.run(&Command::RemoveGroup(args.group.clone()))?;
    out!("{}: removed", Printable(&args.group));
    Ok(())
}

fn list(args: &Query) -> Result<()> {
    print_answer(args, &Command::Groups, |groups| {
        groups.as_array().into_iter().flatten().for_each(print_group);
    })
}

fn print_group(group: &Value) {
    let disks = group["disks"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let disks: Vec<&str> = disks.collect();
    let disks = if disks.is_empty() { "none".into() } else { disks.join(", ") };
    let (name, origin) = (text(group, "name"), text(group, "origin"));
    let limit = limit_text(&group["limit"]);
    out!("{name} ({origin}): limit {limit}, disks {}", Printable(disks));
}
