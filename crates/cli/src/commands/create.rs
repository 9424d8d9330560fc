//! `flowstone create`

use flowstone_block::Result;
use flowstone_formats::create;
use flowstone_image::Format;

use super::{LOCK_PATIENCE, print_notice};
use crate::args::Create;

pub fn run(args: &Create) -> Result<()> {
    let format = Format::choose(args.format, &args.image)?;
    let options = args.options()?;
    let notice = create(&args.image, format, args.size, &options, LOCK_PATIENCE)?;
    print_notice(&args.image, notice);
    Ok(())
}
