//! `flowstone convert`

use std::path::Path;
use std::process::ExitCode;

use flowstone_block::Result;
use flowstone_fileio::Access;
use flowstone_formats::create;
use flowstone_image::{Format, Image};

use super::{LOCK_PATIENCE, open_image, print_notice};
use crate::args::Convert;
use crate::progress::bytes_bar;

pub fn run(args: &Convert) -> Result<ExitCode> {
    let source = open_image(&args.source, args.source_format, Access::Read, &args.backing_dirs)?;
    let capacity_bytes = source.geometry().capacity.bytes();
    let format = Format::choose(args.format, &args.target)?;
    let options = args.options();
    let notice = create(&args.target, format, capacity_bytes, &options, LOCK_PATIENCE)?;
    print_notice(&args.target, notice);
    let copied = fill(&args.target, format, &*source);
    if copied.is_err() {
        // A partial copy must not look like a whole one. The file is ours: it has just been
        // created.
        let _ = std::fs::remove_file(&args.target);
    }
    copied.map(|()| ExitCode::SUCCESS)
}

fn fill(target: &Path, format: Format, source: &dyn Image) -> Result<()> {
    let target = open_image(target, Some(format), Access::Write, &[])?;
    let bar = bytes_bar("converting", source.geometry().capacity.bytes());
    let copied = flowstone_formats::convert(source, &*target, |bytes| bar.set_position(bytes));
    bar.finish_and_clear();
    copied
}
