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
            let image = open_image(&args.image, args.format, Access::Write).map_err(in_use)?;
            image.resize(capacity)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn grow_live(args: &Resize, control: &Path) -> Result<()> {
    // The daemon may run in another folder; what is no file here is the name of a disk.
    let image = std::fs::canonicalize(&args.image).unwrap_or_else(|_| args.image.clone());
    let disk = image.display().to_string();
    let command = Command::Resize { disk, bytes: args.size };
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
