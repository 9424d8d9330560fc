//! `flowstone create`

use std::process::ExitCode;

use flowstone_block::Result;
use flowstone_image::Format;

use super::LOCK_PATIENCE;
use crate::args::Create;

pub fn run(args: &Create) -> Result<ExitCode> {
    let format = Format::choose(args.format, &args.image)?;
    flowstone_image::create(&args.image, format, args.size, &args.options()?, LOCK_PATIENCE)?;
    Ok(ExitCode::SUCCESS)
}
