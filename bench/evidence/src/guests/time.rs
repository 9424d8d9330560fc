//! TRIM on against off in the time of S3's drive, by what the copies of its collector cost.

use super::{
    FILL, FORMATS, FULL, LARGE, NO_TRIM, Options, S3_DRIVE, formats_and_trim, of_guest, phases,
};
use crate::phases::OfPhase;
use crate::table::{Shown, Table, column};

/// Erase blocks of which each holds pieces of four guests.
const HUGE: &str = "--ssd=block=32M";
const SPARE: &str = "--ssd=op=28%";

/// Returns all tables.
pub fn tables() -> Vec<Table> {
    vec![
        Table {
            columns: vec![
                column("TRIM", &[S3_DRIVE]),
                column("by fstrim", &[S3_DRIVE, "--ssd=trim=batch:1G"]),
                column("none", &[S3_DRIVE, NO_TRIM]),
            ],
            lines: drives(),
            ..of_guest(
                "postmark-blocks",
                "postmark",
                "Seconds that an X25-M works for each GiB of Postmark, by erase block",
                Shown::SecondsPerGib,
            )
        },
        Table {
            columns: formats_and_trim(&["raw", "qcow2"]),
            ..phases(
                "trees-full",
                "trees",
                "Seconds that an X25-M works for source trees, 95 % of it, erase blocks of 8 MiB",
                OfPhase::Seconds,
                &[S3_DRIVE, "--timing=trace", LARGE, FULL],
            )
        },
        sort_images("sort-images", "Total WAF of four images on one drive, sort", OfPhase::Waf),
        sort_images(
            "sort-images-time",
            "Seconds that an X25-M works for four images, sort",
            OfPhase::Seconds,
        ),
    ]
}

/// The erase block, the over-provisioning, and the share of the drive.
fn drives() -> Options {
    let line = |format: &str, drive: &str, options: &[&str]| {
        let format_option = format!("--format={format}");
        column(&format!("{format}, {drive}"), &[&[&*format_option], options].concat())
    };
    let blocks = ["512K", "2M", "4M", "8M"].map(|block| (block, format!("--ssd=block={block}")));
    let by_block = |format: &'static str| {
        blocks.iter().map(move |(block, option)| line(format, block, &[option]))
    };
    let of = |format| {
        let rest = [
            line(format, "8M, 95 % of the drive", &[LARGE, FULL]),
            line(format, "8M, 28 % of spare flash", &[LARGE, SPARE]),
        ];
        by_block(format).chain(rest).collect::<Vec<_>>()
    };
    let log = [line("log", "512K", &[]), line("log", "8M", &[LARGE])];
    [of("raw"), of("qcow2"), log.to_vec()].concat()
}

/// Four images side by side, whose guests do the same at the same time. A log image does not fit
/// at 95 % of the drive.
fn sort_images(name: &'static str, title: &'static str, what: OfPhase) -> Table {
    let mut columns = formats_and_trim(&FORMATS);
    for (name, options) in &mut columns {
        let (share, fill) = if name.starts_with("log") { (70, FILL) } else { (95, FULL) };
        *name = format!("{name}, {share} %");
        options.push(fill.to_owned());
    }
    Table { columns, ..phases(name, "sort", title, what, &[S3_DRIVE, HUGE, "--images=4"]) }
}
