//! The tables of recorded guests (`flowstone-bench evidence --record`).
//!
//! All except the file server's use a drive that was written before, and that gets discards only if
//! the guest mounts with `-o discard`.

mod time;

use super::phases::OfPhase;
use super::record::trace_path;
use super::table::{Shown, Table, column, formats};

const FORMATS: [&str; 3] = ["raw", "qcow2", "log"];
/// Largest share of the drive at which a log image of 1 GiB with a reserve of 18 % fits.
const FILL: &str = "--fill=0.7";
const FULL: &str = "--fill=0.95";
const LARGE: &str = "--ssd=block=8M";
/// A guest without `-o discard`: it allocates the same blocks.
const NO_TRIM: &str = "--serve-arg=--discard=ignore";
/// 1.5 ms per TRIM.
const S3_DRIVE: &str = "--ssd=profile=x25m";
/// No cost per TRIM.
const S1_DRIVE: &str = "--ssd=profile=sata2014";

type Options = Vec<(String, Vec<String>)>;

/// Returns all tables.
pub fn tables() -> Vec<Table> {
    let mut tables = of_recordings();
    tables.extend(time::tables());
    tables
}

fn of_recordings() -> Vec<Table> {
    vec![
        Table {
            columns: spares(&[("TRIM", "--ssd=trim=on"), ("by fstrim", "--ssd=trim=batch:1G")]),
            lines: formats_full_and_large(),
            ..of_guest("postmark", "postmark", "Total WAF of Postmark, eight runs", Shown::Waf)
        },
        Table {
            columns: vec![
                column("X25-M, TRIM", &[S3_DRIVE]),
                column("X25-M, none", &[S3_DRIVE, NO_TRIM]),
                column("SATA of 2014, TRIM", &[S1_DRIVE]),
                column("SATA of 2014, none", &[S1_DRIVE, NO_TRIM]),
            ],
            lines: formats_and_full(),
            ..of_guest(
                "postmark-time",
                "postmark",
                "Seconds that a drive works for each GiB that Postmark writes",
                Shown::SecondsPerGib,
            )
        },
        postmark_runs(),
        phases(
            "trees",
            "trees",
            "Seconds that an X25-M works for source trees",
            OfPhase::Seconds,
            &[S3_DRIVE, "--timing=trace"],
        ),
        deletes(),
        full("files-runs", "files", "Total WAF of a file server on 95 % of a drive, run by run"),
        runs("sort", "sort", "Total WAF of an external sort, erase blocks of 8 MiB"),
        runs("words", "words", "Total WAF of word count, erase blocks of 8 MiB"),
        four(
            "sort-four",
            "sort-four",
            "Total WAF of four guests that sort on one drive, by erase block",
        ),
        four(
            "words-four",
            "words-four",
            "Total WAF of four guests that count words on one drive, by erase block",
        ),
        files(),
        mail(),
        streams(),
        resort(),
    ]
}

fn base(trace: &str, more: &[&str]) -> Vec<String> {
    let mut options = vec![format!("--trace={}", trace_path(trace).display())];
    options.extend([FILL, "--aged"].iter().chain(more).map(|it| (*it).to_owned()));
    options
}

/// Returns a table of a recording by format.
fn of_guest(name: &'static str, trace: &str, title: &'static str, shown: Shown) -> Table {
    let (columns, lines, base) = (Vec::new(), formats(&FORMATS), base(trace, &[]));
    Table { name, title, shown, columns, lines, base }
}

/// All formats, and those that fit at 95 % of the drive: S3's files alone filled 80 % of its drive,
/// where a log image of that size does not fit.
fn formats_and_full() -> Options {
    let full = ["raw", "qcow2"].map(|format| {
        column(&format!("{format}, 95 % of the drive"), &[&format!("--format={format}"), FULL])
    });
    [formats(&FORMATS), full.to_vec()].concat()
}

/// The same, and with erase blocks of a segment's size and larger.
fn formats_full_and_large() -> Options {
    let large = ["raw", "qcow2", "log"].map(|format| {
        let line = format!("{format}, erase blocks of 8 MiB");
        column(&line, &[&format!("--format={format}"), LARGE])
    });
    [formats_and_full(), large.to_vec()].concat()
}

/// By over-provisioning: with each kind of TRIM, and without.
fn spares(trims: &[(&str, &str)]) -> Options {
    let of = |spare: &'static str| {
        let trims = trims.iter().chain(&[("none", NO_TRIM)]);
        let spare_option = format!("--ssd=op={spare}");
        trims.map(move |(name, option)| {
            column(&format!("{spare}, {name}"), &[&spare_option, option])
        })
    };
    ["7%", "28%"].into_iter().flat_map(of).collect()
}

/// Each format with TRIM, and without.
fn formats_and_trim(names: &[&str]) -> Options {
    let of = |name: &&str| {
        let format = format!("--format={name}");
        [
            column(&format!("{name}, TRIM"), &[&format]),
            column(&format!("{name}, none"), &[&format, NO_TRIM]),
        ]
    };
    names.iter().flat_map(of).collect()
}

fn phases(
    name: &'static str,
    trace: &str,
    title: &'static str,
    what: OfPhase,
    more: &[&str],
) -> Table {
    let shown = Shown::Phases(what);
    let lines = vec![column("", &[])];
    Table {
        name,
        title,
        shown,
        columns: formats_and_trim(&FORMATS),
        lines,
        base: base(trace, more),
    }
}

fn runs(name: &'static str, trace: &str, title: &'static str) -> Table {
    phases(name, trace, title, OfPhase::Waf, &[LARGE])
}

fn postmark_runs() -> Table {
    let title = "Total WAF of Postmark, run by run";
    phases("postmark-runs", "postmark", title, OfPhase::Waf, &[])
}

/// Returns a table of raw and qcow2 images that fill 95 % of the drive, which no log image can.
fn full(name: &'static str, trace: &str, title: &'static str) -> Table {
    let columns = formats_and_trim(&["raw", "qcow2"]);
    Table { columns, ..phases(name, trace, title, OfPhase::Waf, &[FULL]) }
}

/// Four disks side by side are one raw disk for a drive; with other formats four images are not.
fn four(name: &'static str, trace: &str, title: &'static str) -> Table {
    let of = |block: &'static str| {
        let option = format!("--ssd=block={block}");
        [("TRIM", ""), ("none", NO_TRIM)].map(|(trim, more)| {
            let options: Vec<_> =
                [option.as_str(), more].into_iter().filter(|it| !it.is_empty()).collect();
            column(&format!("{block}, {trim}"), &options)
        })
    };
    let columns = ["512K", "8M", "32M"].into_iter().flat_map(of).collect();
    Table { columns, ..phases(name, trace, title, OfPhase::Waf, &[FULL, "--format=raw"]) }
}

/// Returns a column for each of four guests.
fn of_guests() -> Options {
    let guests = [
        ("Postmark", "postmark"),
        ("file server", "files"),
        ("source trees", "trees"),
        ("sort", "sort"),
    ];
    let of = |(name, trace): (&str, &str)| {
        column(name, &[&format!("--trace={}", trace_path(trace).display())])
    };
    guests.map(of).to_vec()
}

/// Compares streams: whether separating the data that guests write as metadata helps the drive
/// (S1.2).
fn streams() -> Table {
    let base = vec![FILL.into(), "--aged".into(), "--format=log".into()];
    let line = |name: &str, streams: &str, block: &str| {
        column(name, &[&format!("--streams={streams}"), block])
    };
    Table {
        columns: of_guests(),
        lines: vec![
            line("one", "one", "--ssd=block=512K"),
            line("split", "split", "--ssd=block=512K"),
            line("one, erase blocks of 8 MiB", "one", LARGE),
            line("split, erase blocks of 8 MiB", "split", LARGE),
        ],
        base,
        ..of_guest("streams", "trees", "Total WAF of log images by their streams", Shown::Waf)
    }
}

/// In the trace's timing, since the pass needs a quiet guest.
fn resort() -> Table {
    Table {
        columns: of_guests(),
        lines: vec![
            column("a tenth of the disk a day", &[]),
            column("off", &["--serve-arg=--resort=off"]),
        ],
        base: vec![FILL.into(), "--aged".into(), "--format=log".into(), "--timing=trace".into()],
        ..of_guest("resort", "trees", "Total WAF of log images by the re-sorting pass", Shown::Waf)
    }
}

/// In the trace's timing, since closely following discards are merged.
fn deletes() -> Table {
    Table {
        columns: of_guests(),
        base: vec![FILL.into(), "--timing=trace".into()],
        ..of_guest("deletes", "trees", "TRIMs to the drive for discards of the guest", Shown::Trims)
    }
}

/// A cache for a tenth of what is read, with journals kept out of it (PDC, S4) and not.
fn mail() -> Table {
    let of = |name: &str, trace: &str, pdc: &str| {
        let trace = format!("--trace={}", trace_path(trace).display());
        column(name, &[&trace, &format!("--serve-arg=--pdc={pdc}")])
    };
    Table {
        columns: vec![
            of("PDC", "mail", "on"),
            of("off", "mail", "off"),
            of("no journal, PDC", "mail-nojournal", "on"),
            of("no journal, off", "mail-nojournal", "off"),
        ],
        base: ["--format=raw", FILL, "--cache=40M", S3_DRIVE].map(str::to_owned).to_vec(),
        ..phases(
            "mail",
            "mail",
            "Seconds that an X25-M works for 20,000 reads, by reads for each commit",
            OfPhase::Seconds,
            &[],
        )
    }
}

/// S1's drive was new, and large.
fn files() -> Table {
    let mut base = base("files", &[S1_DRIVE]);
    base.retain(|option| option != "--aged");
    Table {
        columns: vec![column("much room", &["--fill=0.2"]), column("70 % full", &[])],
        base,
        ..of_guest(
            "files",
            "files",
            "Seconds that a SATA drive of 2014 works for each GiB that a file server writes",
            Shown::SecondsPerGib,
        )
    }
}
