//! `flowstone disk`

use std::thread::sleep;
use std::time::{Duration, Instant};

use flowstone_block::{Error, ErrorKind, Printable, Result, format_size};
use flowstone_control::{Client, Command, DiskChange};
use serde_json::Value;

use super::{disk_meant_by, limit_text, only_print_from_now_on, print_answer, text};
use crate::args::{AddDisk, DiskCommand, Query, RemoveDisk, SetDisk, ShowDisk};
use crate::output::{out, tell};

/// Time between two checks whether a disk is open: initially, and at most.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
const LOOK_AGAIN_MAX: Duration = Duration::from_millis(200);
/// Time after which waiting is reported, and interval of progress reports.
const QUIET: Duration = Duration::from_secs(1);
const TELL_AGAIN: Duration = Duration::from_secs(10);

pub fn run(command: DiskCommand) -> Result<()> {
    match command {
        DiskCommand::Add(args) => add(args),
        DiskCommand::List(args) => list(&args),
        DiskCommand::Show(args) => show(&args),
        DiskCommand::Remove(args) => remove(args),
        DiskCommand::Set(args) => set(&args),
    }
}

fn add(args: AddDisk) -> Result<()> {
    let mut daemon = Client::connect(&args.daemon.control)?;
    let name = args.name;
    let mut disk = daemon.run(&Command::Add(name.clone(), args.keys))?;
    let (mut tell_at, mut pause, mut told) = (Instant::now() + QUIET, LOOK_AGAIN, String::new());
    while disk["state"] == "opening" && !args.no_wait {
        if Instant::now() > tell_at {
            tell_at += TELL_AGAIN;
            let locked = || "its image is locked, or recovered".into();
            let what = progress_of(&disk).unwrap_or_else(locked);
            if what != told {
                tell!("{} is being opened: {what}", Printable(&name));
                told = what;
            }
        }
        sleep(pause);
        pause = (2 * pause).min(LOOK_AGAIN_MAX);
        disk = daemon.run(&Command::Show(name.clone()))?;
    }
    if disk["state"] == "failed" {
        return Err(error_of(&disk["error"]));
    }
    out!("{}: {}, {}", Printable(&name), text(&disk, "state"), text(&disk, "socket"));
    Ok(())
}

/// Returns the progress of the image's recovery.
fn progress_of(disk: &Value) -> Option<String> {
    let figure = |key: &str| disk["progress"][key].as_u64();
    let (read, segments) = (figure("segments_read")?, figure("segments")?);
    Some(format!("{read} of {segments} segments read"))
}

/// Returns the error for which a disk is not served.
pub fn error_of(error: &Value) -> Error {
    let part = |key: &str| error[key].as_str().unwrap_or("-").to_owned();
    let kind = ErrorKind::from_name(&part("kind")).unwrap_or(ErrorKind::Host);
    Error::new(kind, part("what"), part("why"), part("advice"))
}

fn list(args: &Query) -> Result<()> {
    print_answer(args, &Command::Disks, |disks| {
        disks.as_array().into_iter().flatten().for_each(print_line);
    })
}

fn print_line(disk: &Value) {
    let guest = if disk["connected"] == true { "a guest is attached" } else { "no guest" };
    let progress = progress_of(disk).map_or_else(String::new, |it| format!(": {it}"));
    out!(
        "{}  {}{progress} ({}), {guest}, socket {}, image {}",
        text(disk, "name"),
        text(disk, "state"),
        text(disk, "origin"),
        text(disk, "socket"),
        text(disk, "image")
    );
    if disk["error"].is_object() {
        out!("  {}", error_of(&disk["error"]));
    }
}

fn show(args: &ShowDisk) -> Result<()> {
    let command = Command::Show(args.name.clone());
    print_answer(&args.query, &command, |disk| {
        print_line(disk);
        for (key, value) in disk["keys"].as_object().into_iter().flatten() {
            let key = Printable(key);
            out!("  {key} = {} ({})", text(value, "value"), text(value, "origin"));
        }
    })
}

fn remove(args: RemoveDisk) -> Result<()> {
    let command = Command::Remove { name: args.name.clone(), force: args.force };
    Client::connect(&args.daemon.control)?.run(&command)?;
    out!("{}: removed", Printable(&args.name));
    Ok(())
}

fn set(args: &SetDisk) -> Result<()> {
    let change = DiskChange {
        size: args.size,
        limit: args.share.limit.map(|limit| limit.to_string()),
        weight: args.share.weight.map(|weight| weight.get()),
    };
    let command = Command::Change(disk_meant_by(&args.disk), change);
    let now = Client::connect(&args.daemon.control)?.run(&command)?;
    only_print_from_now_on();
    let size = now["capacity_bytes"].as_u64().filter(|_| args.size.is_some());
    let size = size.map_or_else(String::new, |size| format!(", size {}", format_size(size)));
    let (name, limit) = (args.disk.display(), limit_text(&now["limit"]));
    out!("{name}: limit {limit}, weight {}{size}", now["weight"]);
    Ok(())
}
