//! `flowstone compact`

use std::process::ExitCode;

use flowstone_block::Result;
use flowstone_fileio::Access;

use super::open_image;
use crate::args::Compact;

pub fn run(args: &Compact) -> Result<ExitCode> {
    open_image(&args.image, args.format, Access::Write, &args.backing_dirs)?.compact()?;
    Ok(ExitCode::SUCCESS)
}
