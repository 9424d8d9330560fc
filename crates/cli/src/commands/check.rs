//! `flowstone check`

use std::process::ExitCode;

use flowstone_block::{Result, format_size};
use flowstone_fileio::Access;
use serde::Serialize;

use super::{open_image, print_json};
use crate::args::Check;
use crate::progress::bytes_bar;

const ERRORS_FOUND: u8 = 2;
const ONLY_LEAKS: u8 = 3;

/// The stable JSON shape.
#[derive(Serialize)]
struct Report<'a> {
    image: String,
    readable_bytes: u64,
    error_count: u64,
    leaked_bytes: u64,
    errors: &'a [String],
}

pub fn run(args: &Check) -> Result<ExitCode> {
    let access = if args.repair { Access::Write } else { Access::Read };
    let image = open_image(&args.image, args.format, access)?;
    let bar = bytes_bar("checking", image.geometry().capacity.bytes());
    let found = flowstone_image::check(&*image, |bytes| bar.set_position(bytes))?;
    bar.finish_and_clear();
    if args.json {
        print_json(&Report {
            image: args.image.display().to_string(),
            readable_bytes: found.readable_bytes,
            error_count: found.error_count,
            leaked_bytes: found.leaked_bytes,
            errors: &found.errors,
        });
    } else {
        found.errors.iter().for_each(|error| println!("error: {error}"));
        let readable = format_size(found.readable_bytes);
        println!("{} errors, {readable} of data readable", found.error_count);
    }
    Ok(match (found.error_count, found.leaked_bytes) {
        (0, 0) => ExitCode::SUCCESS,
        (0, _) => ExitCode::from(ONLY_LEAKS),
        _ => ExitCode::from(ERRORS_FOUND),
    })
}
