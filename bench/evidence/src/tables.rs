//! The tables: a base point, varied in one factor at a time.
//!
//! The base point is a drive of 4 GiB with a disk of 80 % of it: 7 % over-provisioning, units of 4
//! KiB, erase blocks of 512 KiB, TRIM on, zipf .99.

use super::table::{Shown, Table, column, formats, named};
use super::{checks, guests};

const BOTH: [&str; 2] = ["raw", "log"];

/// Sizes of disks, drives and loads.
struct Sizes {
    disk: &'static str,
    fill: &'static str,
    half: &'static str,
    /// A share of the drive at which images with small segments fit, too.
    loose: &'static str,
    /// A disk of which several are replayed at once.
    small: &'static str,
    /// Number of writes that need no cleaning.
    burst: &'static str,
    /// Numbers of writes before and in the measured part, if not those of `replay`.
    writes: &'static [&'static str],
    blocks: &'static [&'static str],
    segments: &'static [&'static str],
    /// A large erase block, and half of it.
    large: &'static str,
    misfit: &'static str,
}

const FULL: Sizes = Sizes {
    disk: "3.2G",
    fill: "0.8",
    half: "0.5",
    loose: "0.7",
    small: "1.6G",
    burst: "--ops=400000",
    writes: &[],
    blocks: &["512K", "2M", "8M", "32M"],
    segments: &["1M", "2M", "8M", "32M"],
    large: "8M",
    misfit: "4M",
};
/// The disk and the drive of `--long`.
const LONG: Sizes = Sizes { disk: "51.2G", blocks: &["32M", "128M"], ..FULL };
/// A log image of this size fits at 55 % of the drive.
const QUICK: Sizes = Sizes {
    disk: "256M",
    fill: "0.55",
    half: "0.3",
    loose: "0.5",
    small: "256M",
    burst: "--ops=30000",
    // Three times the disk, and twice.
    writes: &["--warmup=196608", "--ops=131072"],
    blocks: &["512K", "1M"],
    segments: &["1M", "2M"],
    large: "1M",
    misfit: "512K",
};

/// Returns all tables; with small disks if `is_quick`.
pub fn tables(is_quick: bool) -> Vec<Table> {
    let sizes = if is_quick { QUICK } else { FULL };
    let mut tables = of_drives(&sizes);
    tables.extend(of_hosts(&sizes));
    tables.push(images(&sizes));
    tables.push(segments(&sizes));
    tables.push(reserves(&sizes));
    tables.push(copies(&sizes));
    tables.push(records(&sizes));
    tables.push(dead_segments(&sizes));
    tables.push(ages(&sizes));
    tables.push(sata(&sizes));
    // Recorded guests have disks of a fixed size, and so have the checks.
    if !is_quick {
        tables.push(checks::table(sizes.base("uniform")));
        tables.extend(guests::tables());
    }
    tables
}

/// Returns the tables of `--long`: whether what small drives show holds on large ones, where an
/// erase block of today's SSDs is a small part of the disk, and two factors at a time.
pub fn long() -> Vec<Table> {
    vec![large_drives(), loads_and_blocks()]
}

fn large_drives() -> Table {
    let title = "Total WAF on a drive of 64 GiB by the size of erase blocks, zipf .99";
    let mut table = LONG.table("large", title, properties("block", LONG.blocks), &BOTH);
    table.lines.push(log_with_streams());
    // About two times the disk, and once: with the usual numbers a log image takes half an hour.
    table.base.extend(["--warmup=30000000", "--ops=15000000"].map(str::to_owned));
    table
}

/// The loads of which `erase-block` shows nothing.
fn loads_and_blocks() -> Table {
    let title = "Total WAF by the size of erase blocks, uniform and 95/5";
    let mut table = FULL.table("load-block", title, properties("block", FULL.blocks), &[]);
    let ways = [column("raw", &["--format=raw"]), column("log", &["--format=log"])];
    for load in ["uniform", "hotcold:95/5"] {
        let of_load = |(name, options): &(String, Vec<String>)| {
            let options = [&options[..], &[format!("--generate={load}")]].concat();
            (format!("{name}, {load}"), options)
        };
        table.lines.extend(ways.iter().chain(&[log_with_streams()]).map(of_load));
    }
    table
}

impl Sizes {
    /// Returns the arguments of the base point, without the format.
    fn base(&self, load: &str) -> Vec<String> {
        let Self { disk, fill, .. } = self;
        let mut base =
            vec![format!("--size={disk}"), format!("--fill={fill}"), format!("--generate={load}")];
        base.extend(self.writes.iter().map(|it| (*it).to_owned()));
        base
    }

    fn table(
        &self,
        name: &'static str,
        title: &'static str,
        columns: Vec<(String, Vec<String>)>,
        lines: &[&str],
    ) -> Table {
        let (lines, base) = (formats(lines), self.base("zipf:0.99"));
        Table { name, title, shown: Shown::Waf, columns, lines, base }
    }
}

/// A log image on a drive with a write stream: its copies are kept apart.
fn log_with_streams() -> (String, Vec<String>) {
    column("log, write streams", &["--format=log", "--ssd=streams=1"])
}

/// Tables that vary the drive.
fn of_drives(sizes: &Sizes) -> Vec<Table> {
    let title = "Total WAF by the size of erase blocks, zipf .99";
    let mut blocks = sizes.table("erase-block", title, properties("block", sizes.blocks), &BOTH);
    blocks.lines.push(log_with_streams());
    vec![
        blocks,
        sizes.table(
            "unit",
            "Total WAF by mapping unit, zipf .99",
            properties("unit", &["4K", "8K", "16K", "64K"]),
            &BOTH,
        ),
        sizes.table(
            "spare",
            "Total WAF by over-provisioning, zipf .99",
            properties("op", &["7%", "15%", "28%"]),
            &BOTH,
        ),
        sizes.table(
            "collector",
            "Total WAF by the drive's collector, zipf .99",
            properties("gc", &["greedy", "fifo", "cb"]),
            &["raw"],
        ),
    ]
}

/// Tables that vary the load, and the host's behaviour.
fn of_hosts(sizes: &Sizes) -> Vec<Table> {
    let loads = ["uniform", "zipf:0.99", "hotcold:95/5", "sequential"];
    let fills = named(&[sizes.half, "0.65", sizes.fill], |fill| format!("--fill={fill}"));
    let mut fills_of_loads = sizes.table(
        "fill-loads",
        "Total WAF by how much of the drive the disk is, uniform and 95/5",
        fills.clone(),
        &[],
    );
    for load in ["uniform", "hotcold:95/5"] {
        let of_load = |format| [format!("--format={format}"), format!("--generate={load}")];
        fills_of_loads.lines.extend(BOTH.map(|it| (format!("{it}, {load}"), of_load(it).to_vec())));
    }
    let offset = format!("--ssd=block={},offset=", sizes.large);
    vec![
        sizes.table(
            "load",
            "Total WAF by load",
            named(&loads, |load| format!("--generate={load}")),
            &["raw", "qcow2", "log"],
        ),
        sizes.table("trim", "Total WAF by when the drive hears of TRIM, zipf .99", trims(), &BOTH),
        sizes.table(
            "fill",
            "Total WAF by how much of the drive the disk is, zipf .99",
            fills,
            &BOTH,
        ),
        fills_of_loads,
        sizes.table(
            "offset",
            "Total WAF by where the file begins among erase blocks of 8 MiB, zipf .99",
            named(&["0", sizes.misfit], |at| format!("{offset}{at}")),
            &BOTH,
        ),
    ]
}

/// When the drive hears of what is discarded.
fn trims() -> Vec<(String, Vec<String>)> {
    vec![
        column("at once", &["--ssd=trim=on"]),
        column("after each GiB written", &["--ssd=trim=batch:1G"]),
        column("never, a drive written before", &["--ssd=trim=off", "--aged"]),
    ]
}

/// For hosts that keep the images of several guests on one drive.
fn images(sizes: &Sizes) -> Table {
    let of = |count: &str, name: &str| column(name, &[&format!("--images={count}")]);
    let columns = vec![of("1", "one image"), of("2", "two images"), of("4", "four images")];
    let title = "Total WAF by the number of images on one drive, 70 % of it, zipf .99 each";
    let mut table = sizes.table("images", title, columns, &BOTH);
    table.base.push(format!("--size={}", sizes.small));
    table.base.push(format!("--fill={}", sizes.loose));
    table
}

fn segments(sizes: &Sizes) -> Table {
    let mut base = sizes.base("zipf:0.99");
    base.extend(["--format=log".to_owned(), format!("--fill={}", sizes.loose)]);
    Table {
        name: "segment",
        title: "Total WAF of log images by segment and erase block, 70 % of the drive, zipf .99",
        shown: Shown::Waf,
        columns: named(sizes.segments, |size| format!("--segment={size}")),
        lines: properties("block", &["512K", sizes.large]),
        base,
    }
}

/// Space that the image does not reserve is available to the drive.
fn reserves(sizes: &Sizes) -> Table {
    let title = "Total WAF of log images by reserve and erase block, 70 % of the drive, zipf .99";
    let columns = named(&["10", "15", "20", "23"], |percent| format!("--reserve={percent}"));
    Table { name: "reserve", title, columns, ..segments(sizes) }
}

/// Without memory the cleaner writes two records in a row.
fn copies(sizes: &Sizes) -> Table {
    let title = "Total WAF of log images by memory for copies and erase block, zipf .99";
    let columns = named(&["0", "16M", "64M"], |size| format!("--serve-arg=--copy-memory={size}"));
    let mut base = sizes.base("zipf:0.99");
    base.push("--format=log".to_owned());
    Table { name: "copies", title, columns, base, ..segments(sizes) }
}

/// A record has the writes that are in flight at once.
fn records(sizes: &Sizes) -> Table {
    let title = "Total WAF of log images by requests in flight and erase block, zipf .99";
    let columns = named(&["1", "8", "32", "128"], |depth| format!("--iodepth={depth}"));
    Table { name: "records", title, columns, ..copies(sizes) }
}

/// The image tells of its dead segments at once, and the drive hears of them when it does.
fn dead_segments(sizes: &Sizes) -> Table {
    let title = "Total WAF of log images by when the drive hears of dead segments, zipf .99";
    let columns = properties("block", sizes.blocks);
    Table { name: "dead", title, columns, lines: trims(), ..copies(sizes) }
}

/// 0 is greedy, 1 the age as in LFS.
fn ages(sizes: &Sizes) -> Table {
    let title = "Total WAF of log images by the exponent of a segment's age and load";
    let loads = ["uniform", "zipf:0.99", "hotcold:95/5"];
    Table {
        name: "age",
        title,
        columns: named(&["0", "0.35", "0.5", "1"], |power| format!("--age-power={power}")),
        lines: named(&loads, |load| format!("--generate={load}")),
        ..copies(sizes)
    }
}

fn sata(sizes: &Sizes) -> Table {
    let mut base = sizes.base("uniform");
    base.push("--ssd=profile=sata2014".to_owned());
    let columns = vec![
        column("much room, half overwritten", &["--warmup=0", "--fill=0.3", sizes.burst]),
        column("full, overwritten seven times", &[]),
    ];
    Table {
        name: "sata",
        title: "Seconds that a SATA drive of 2014 works for each GiB of random writes of 4 KiB",
        shown: Shown::SecondsPerGib,
        columns,
        lines: formats(&BOTH),
        base,
    }
}

fn properties(name: &'static str, values: &[&str]) -> Vec<(String, Vec<String>)> {
    named(values, |value| format!("--ssd={name}={value}"))
}
