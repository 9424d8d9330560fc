//! `flowstone resize`

use std::path::Path;

use flowstone_block::{Error, ErrorKind, Result, SizeChange, format_size};
use flowstone_control::{Client, Command, DiskChange};
use flowstone_fileio::Access;

use super::{disk_meant_by, open_image, sector_count};
use crate::args::Resize;
use crate::output::out;

pub fn run(args: &Resize) -> Result<()> {
    match &args.control {
        Some(control) => grow_live(args, control),
        None => resize_image(args),
    }
}

/// Resizes an image. The size is relative to that of the open image: it is locked, so nothing else
/// changes it.
fn resize_image(args: &Resize) -> Result<()> {
    let what = format!("resize {}", args.image.display());
    if let SizeChange::To(bytes) = args.size {
        sector_count(&what, bytes)?;
    }
    let image = open_image(&args.image, args.format, Access::Write, &args.backing_dirs);
    let image = image.map_err(in_use)?;
    let now = image.geometry().capacity.bytes();
    let bytes = args.size.apply(now).ok_or_else(|| {
        let why = format!("the disk has {}, which leaves no size for it", format_size(now));
        Error::invalid(&what, why, "give a smaller difference, or the new size")
    })?;
    image.resize(sector_count(&what, bytes)?)?;
    image.close()
}

fn grow_live(args: &Resize, control: &Path) -> Result<()> {
    if let SizeChange::Shrink(_) = args.size {
        let what = format!("resize {}", args.image.display());
        let why = "a guest would lose the end of a disk it is using";
        return Err(Error::invalid(what, why, "stop the daemon to shrink an image"));
    }
    let change = DiskChange { size: Some(args.size), ..DiskChange::default() };
    let command = Command::Change(disk_meant_by(&args.image), change);
    let answer = Client::connect(control)?.run(&command)?;
    let seen = match answer["guest_told"].as_bool() {
        Some(true) => "the guest has been told",
        _ => "no guest is connected",
    };
    let size = answer["capacity_bytes"].as_u64().map_or_else(|| "larger".into(), format_size);
    out!("{} is {size} now; {seen}", args.image.display());
    Ok(())
}

fn in_use(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Busy => Error::busy(
            "resize",
            "a process is using the image",
            "add --control SOCK to grow it while it is served, or stop that process",
        ),
        _ => error,
    }
}
