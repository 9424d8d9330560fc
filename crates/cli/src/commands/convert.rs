//! `flowstone convert`

use std::path::Path;

use flowstone_block::Result;
use flowstone_fileio::{Access, PartFile};
use flowstone_formats::{ImageOptions, blank_device, create};
use flowstone_image::{Format, Image};

use super::{LOCK_PATIENCE, image_options, open_image, print_notice};
use crate::args::Convert;
use crate::progress::bytes_bar;

pub fn run(args: &Convert) -> Result<()> {
    let source = open_image(&args.source, args.source_format, Access::Read, &args.backing_dirs)?;
    let capacity_bytes = source.geometry().capacity.bytes();
    let format = Format::choose(args.format, &args.target)?;
    let options = args.options();
    let make = |path: &Path| create(path, format, capacity_bytes, &options, LOCK_PATIENCE);
    // A partial copy must not look like a whole one.
    let (part, notice) = PartFile::create(&args.target, make)?;
    print_notice(&args.target, notice);
    if let Err(error) = fill(part.path(), format, &*source) {
        // Without it the old error counts: the next `convert` refuses a device that is not empty.
        let _ = blank_device(part.path());
        return Err(error);
    }
    part.finish()
}

fn fill(target: &Path, format: Format, source: &dyn Image) -> Result<()> {
    let options = ImageOptions { has_redo: false, ..image_options(Access::Write, &[]) };
    let target = flowstone_formats::open(target, format, options)?;
    let bar = bytes_bar("converting", source.geometry().capacity.bytes());
    let copied = flowstone_formats::convert(source, &*target, |bytes| bar.set_position(bytes));
    bar.finish_and_clear();
    copied.and_then(|()| target.close())
}
