//! `flowstone compact`

use std::os::unix::fs::MetadataExt;
use std::process::ExitCode;

use flowstone_block::{Error, Result, format_size};
use flowstone_fileio::Access;

use super::open_image;
use crate::args::Compact;

pub fn run(args: &Compact) -> Result<ExitCode> {
    let name = args.image.display();
    let host = |error| Error::host(name.to_string(), error, "check the host's file system");
    let allocated = || args.image.metadata().map(|it| it.blocks() * 512).map_err(host);
    let before = allocated()?;
    open_image(&args.image, args.format, Access::Write, &args.backing_dirs)?.compact()?;
    // Only now: an image gives its reserve back when it is closed.
    let after = allocated()?;
    println!("{name}: {} on the host, {} before", format_size(after), format_size(before));
    Ok(ExitCode::SUCCESS)
}
