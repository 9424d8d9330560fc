//! The tables: a base point, and one factor at a time.
//!
//! The base point is a drive of 4 GiB of which a full disk is 80 %: 7 % over-provisioning, units of
//! 4 KiB, erase blocks of 512 KiB, TRIM on, zipf .99.

use std::fmt::Write as _;

use anyhow::{Result, ensure};

use super::data::{Cell, Data};

/// What `--ssd` is without being said.
const DEFAULTS: [(&str, &str); 6] = [
    ("op", "7%"),
    ("unit", "4K"),
    ("block", "512K"),
    ("trim", "on"),
    ("gc", "greedy"),
    ("offset", "0"),
];
const BOTH: [&str; 2] = ["raw", "log"];

/// What a cell shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// The total WAF, and host times device where the image writes more than the guest.
    Waf,
    /// Seconds of the drive's work for each GiB that the guest writes.
    SecondsPerGib,
}

/// See the module.
pub struct Table {
    pub name: &'static str,
    pub title: &'static str,
    pub shown: Shown,
    /// What the columns are of, and each one's arguments.
    pub columns: Vec<(String, Vec<String>)>,
    /// The same of the lines.
    pub lines: Vec<(String, Vec<String>)>,
    /// Of all.
    base: Vec<String>,
}

impl Table {
    /// A line after the other. Of an option that comes twice the last one counts.
    pub fn commands(&self) -> impl Iterator<Item = Vec<String>> + '_ {
        self.lines.iter().flat_map(move |(_, line)| {
            let of = move |(_, column): &(String, Vec<String>)| {
                self.command(&[&self.base[..], line, column].concat())
            };
            self.columns.iter().map(of)
        })
    }

    /// Options by name, so that the same replay is the same command in all tables.
    fn command(&self, options: &[String]) -> Vec<String> {
        let mut by_name = std::collections::BTreeMap::new();
        let mut ssd = std::collections::BTreeMap::new();
        for option in options {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            if name == "--ssd" {
                let properties = value.split(',').filter_map(|it| it.split_once('='));
                ssd.extend(properties);
            } else {
                by_name.insert(name, value);
            }
        }
        let said = ssd.iter().filter(|(name, value)| !DEFAULTS.contains(&(*name, *value)));
        let ssd = said.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(",");
        if !ssd.is_empty() {
            by_name.insert("--ssd", &ssd);
        }
        let words = by_name.iter().flat_map(|(name, value)| [*name, *value]);
        let words = ["flowstone", "replay"].into_iter().chain(words).filter(|it| !it.is_empty());
        words.map(str::to_owned).collect()
    }

    /// As Markdown; the least of a column is bold.
    pub fn render(&self, data: &Data) -> Result<String> {
        let commands: Vec<_> = self.commands().collect();
        let measured: Vec<_> = data.cells.iter().map(|cell| cell.command.clone()).collect();
        ensure!(commands == measured, "the data of {} is of other commands", self.name);
        let width = self.columns.len();
        let values = data.cells.iter().map(|cell| self.value(cell)).collect::<Result<Vec<_>>>()?;
        let least = |column: usize| {
            values.iter().skip(column).step_by(width).copied().fold(f64::INFINITY, f64::min)
        };
        let mut text = String::from("| |");
        self.columns.iter().for_each(|(name, _)| {
            let _ = write!(text, " {name} |");
        });
        text += "\n|---|";
        text += &"---|".repeat(width);
        for (line, (name, _)) in self.lines.iter().enumerate() {
            let _ = write!(text, "\n| {name} |");
            for column in 0..width {
                let at = line * width + column;
                let is_least = values[at] <= least(column) && self.lines.len() > 1;
                let mark = if is_least { "**" } else { "" };
                let shown = self.show(&data.cells[at], values[at])?;
                let (number, rest) = shown.split_once(' ').unwrap_or((&shown, ""));
                let gap = if rest.is_empty() { "" } else { " " };
                let _ = write!(text, " {mark}{number}{mark}{gap}{rest} |");
            }
        }
        Ok(text + "\n")
    }

    /// What a cell is compared by.
    pub fn value(&self, cell: &Cell) -> Result<f64> {
        match self.shown {
            Shown::Waf => cell.number("total_waf"),
            Shown::SecondsPerGib => {
                let gib = cell.number("guest_blocks")? * 4096.0 / f64::from(1 << 30);
                Ok(cell.number("device_seconds")? / gib)
            }
        }
    }

    fn show(&self, cell: &Cell, value: f64) -> Result<String> {
        let (host, device) = (cell.number("host_waf")?, cell.number("device_waf")?);
        Ok(match self.shown {
            Shown::Waf if host > 1.01 => format!("{value:.2} ({host:.2} x {device:.2})"),
            Shown::Waf | Shown::SecondsPerGib => format!("{value:.2}"),
        })
    }
}

fn named(names: &[&str], option: impl Fn(&str) -> String) -> Vec<(String, Vec<String>)> {
    names.iter().map(|name| ((*name).to_owned(), vec![option(name)])).collect()
}

fn column(name: &str, options: &[&str]) -> (String, Vec<String>) {
    (name.to_owned(), options.iter().map(|it| (*it).to_owned()).collect())
}

fn formats(names: &[&str]) -> Vec<(String, Vec<String>)> {
    named(names, |name| format!("--format={name}"))
}

fn properties(name: &'static str, values: &[&str]) -> Vec<(String, Vec<String>)> {
    named(values, |value| format!("--ssd={name}={value}"))
}

/// How large all is.
struct Sizes {
    disk: &'static str,
    fill: &'static str,
    half: &'static str,
    /// What images with small segments fit, too.
    loose: &'static str,
    /// Writes that find room without cleaning.
    burst: &'static str,
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
    burst: "--ops=400000",
    blocks: &["512K", "2M", "8M", "32M"],
    segments: &["1M", "2M", "8M", "32M"],
    large: "8M",
    misfit: "4M",
};
/// A log image of so little has room at 55 % of the drive.
const QUICK: Sizes = Sizes {
    disk: "256M",
    fill: "0.55",
    half: "0.3",
    loose: "0.5",
    burst: "--ops=30000",
    blocks: &["512K", "1M"],
    segments: &["1M", "2M"],
    large: "1M",
    misfit: "512K",
};

/// All of them, of small disks if it has to be quick.
pub fn tables(is_quick: bool) -> Vec<Table> {
    let sizes = if is_quick { QUICK } else { FULL };
    let mut tables = of_drives(&sizes);
    tables.extend(of_hosts(&sizes));
    tables.push(segments(&sizes));
    tables.push(sata(&sizes));
    tables
}

impl Sizes {
    /// The base point but for the format.
    fn base(&self, load: &str) -> Vec<String> {
        let Self { disk, fill, .. } = self;
        vec![format!("--size={disk}"), format!("--fill={fill}"), format!("--generate={load}")]
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

/// What the drive is like.
fn of_drives(sizes: &Sizes) -> Vec<Table> {
    vec![
        sizes.table(
            "erase-block",
            "Total WAF by the size of erase blocks, zipf .99",
            properties("block", sizes.blocks),
            &BOTH,
        ),
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

/// What is written, and what the host does with it.
fn of_hosts(sizes: &Sizes) -> Vec<Table> {
    let loads = ["uniform", "zipf:0.99", "hotcold:95/5", "sequential"];
    let trims = vec![
        column("at once", &["--ssd=trim=on"]),
        column("after each GiB written", &["--ssd=trim=batch:1G"]),
        column("never, a drive written before", &["--ssd=trim=off", "--aged"]),
    ];
    let fills = [sizes.half, "0.65", sizes.fill];
    let offset = format!("--ssd=block={},offset=", sizes.large);
    vec![
        sizes.table(
            "load",
            "Total WAF by load",
            named(&loads, |load| format!("--generate={load}")),
            &["raw", "qcow2", "log"],
        ),
        sizes.table("trim", "Total WAF by when the drive hears of TRIM, zipf .99", trims, &BOTH),
        sizes.table(
            "fill",
            "Total WAF by how much of the drive the disk is, zipf .99",
            named(&fills, |fill| format!("--fill={fill}")),
            &BOTH,
        ),
        sizes.table(
            "offset",
            "Total WAF by where the file begins among erase blocks of 8 MiB, zipf .99",
            named(&["0", sizes.misfit], |at| format!("{offset}{at}")),
            &BOTH,
        ),
    ]
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
