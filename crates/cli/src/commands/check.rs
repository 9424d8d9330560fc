//! `flowstone check`

use std::process::ExitCode;

use flowstone_block::{Result, format_size};
use flowstone_formats::check;
use flowstone_image::{CheckOptions, CheckReport, Format};
use serde::Serialize;

use super::{LOCK_PATIENCE, print_json};
use crate::args::{Check, ReportArgs};
use crate::output::out;
use crate::progress::{bytes_bar, under};

const ERRORS_FOUND: u8 = 2;
const ONLY_LEAKS: u8 = 3;

/// The stable JSON format.
#[derive(Serialize)]
struct Report<'a> {
    image: String,
    #[serde(flatten)]
    found: &'a CheckReport,
}

pub fn run(args: &Check) -> Result<ExitCode> {
    let ReportArgs { json, format, image } = &args.report;
    let format = Format::choose(*format, image)?;
    let options = CheckOptions { data: args.data, repair: args.repair };
    let found = under(bytes_bar("checking", 0), |progress| {
        check(image, format, options, LOCK_PATIENCE, progress)
    })?;
    if *json {
        print_json(&Report { image: image.display().to_string(), found: &found });
    } else {
        print(&found, format, args.data);
    }
    Ok(match (found.error_count, found.leaked_bytes) {
        (0, 0) => ExitCode::SUCCESS,
        (0, _) => ExitCode::from(ONLY_LEAKS),
        _ => ExitCode::from(ERRORS_FOUND),
    })
}

fn print(found: &CheckReport, format: Format, data: bool) {
    found.repairs.iter().for_each(|line| out!("repaired: {line}"));
    found.errors.iter().for_each(|line| out!("error: {line}"));
    let unlisted = found.error_count - found.errors.len() as u64;
    if unlisted > 0 {
        out!("error: and {unlisted} more");
    }
    found.notes.iter().for_each(|line| out!("note: {line}"));
    if found.leaked_bytes > 0 {
        let leaked = format_size(found.leaked_bytes);
        out!("note: {leaked} of host space belong to nothing; --repair gives them back");
    }
    let errors = found.error_count;
    let of_data = format_size(found.data_bytes);
    if format == Format::Qcow2 {
        out!("{errors} errors; {of_data} of data have their places");
    } else if data || format == Format::Raw {
        out!(
            "{errors} errors, {} of {of_data} of data readable",
            format_size(found.readable_bytes)
        );
    } else {
        out!("{errors} errors; {of_data} of data have their places, --data reads them");
    }
}
