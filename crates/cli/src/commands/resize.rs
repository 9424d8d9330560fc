//! `flowstone resize`

use std::path::Path;
use std::process::ExitCode;

use flowstone_block::{Error, ErrorKind, Result, format_size};
use flowstone_daemon::{Client, Command};
use flowstone_fileio::Access;

use super::{open_image, sector_count};
use crate::args::Resize;

pub fn run(args: &Resize) -> Result<ExitCode> {
    let what = format!("resize {}", args.image.display());
    let capacity = sector_count(&what, args.size)?;
    match &args.control {
        Some(control) => grow_live(args, control)?,
        None => {
            let image = open_image(&args.image, args.format, Access::Write, &args.backing_dirs);
            let image = image.map_err(in_use)?;
            image.resize(capacity)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn grow_live(args: &Resize, control: &Path) -> Result<()> {
    // A file here may have the name of a disk; the daemon, perhaps in another folder, knows which
    // of them it serves.
    let disk = args.image.display().to_string();
    let path = std::fs::canonicalize(&args.image).ok();
    let command = Command::Resize { disk, path, bytes: args.size };
    let answer = Client::connect(control)?.run(&command)?;
    let seen = match answer["guest_told"].as_bool() {
        Some(true) => "the guest has been told",
        _ => "no guest is connected",
    };
    println!("{} is {} now; {seen}", args.image.display(), format_size(args.size));
    Ok(())
}

fn in_use(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Locked => Error::locked(
            "resize",
            "a process is using the image",
            "add --control SOCK to grow it while it is served, or stop that process",
        ),
        ErrorKind::Invalid | ErrorKind::Host => error,
    }
}
