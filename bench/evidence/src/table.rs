//! A table of replays and the figure shown of each.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use flowstone_experiment::table;
use serde_json::Value;

use super::data::{Cell, Data};
use super::phases::{self, OfPhase};

/// Defaults of `--ssd`.
const DEFAULTS: [(&str, &str); 6] = [
    ("op", "7%"),
    ("unit", "4K"),
    ("block", "512K"),
    ("trim", "on"),
    ("gc", "greedy"),
    ("offset", "0"),
];
/// Time of a TRIM measured by S3, whatever its length.
const TRIM_SECONDS: f64 = 0.0015;

/// The figure shown in a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// The total WAF, and its factors host and device where the image writes more than the guest.
    Waf,
    /// The total WAF, and that of another simulator, cell by cell, where it is known.
    Beside(&'static [&'static str]),
    /// Seconds of the drive's busy time per GiB that the guest writes.
    SecondsPerGib,
    /// Calls that freed space, and the guest's discards.
    Trims,
    /// A line for each phase of a trace, with phases of the same name merged.
    Phases(OfPhase),
}

/// A table; see the module.
pub struct Table {
    pub name: &'static str,
    pub title: &'static str,
    pub shown: Shown,
    /// Names of the columns, with their arguments.
    pub columns: Vec<(String, Vec<String>)>,
    /// Names of the lines, with their arguments.
    pub lines: Vec<(String, Vec<String>)>,
    /// Arguments of all cells.
    pub base: Vec<String>,
}

impl Table {
    /// Returns the commands of all cells, line by line. The last one of a repeated option counts.
    pub fn commands(&self) -> impl Iterator<Item = Vec<String>> + '_ {
        self.lines.iter().flat_map(move |(_, line)| {
            let of = move |(_, column): &(String, Vec<String>)| {
                self.command(&[&self.base[..], line, column].concat())
            };
            self.columns.iter().map(of)
        })
    }

    /// Sorts options by name, so that the same replay is the same command in all tables.
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
        let mut said: Vec<_> = said.collect();
        // As in the committed commands. The replay applies it first wherever it stands.
        said.sort_by_key(|(name, _)| **name != "profile");
        let said = said.iter().map(|(name, value)| format!("{name}={value}"));
        let ssd = said.collect::<Vec<_>>().join(",");
        if !ssd.is_empty() {
            by_name.insert("--ssd", &ssd);
        }
        let words = by_name.iter().flat_map(|(name, value)| [*name, *value]);
        let words = ["flowstone", "replay"].into_iter().chain(words).filter(|it| !it.is_empty());
        words.map(str::to_owned).collect()
    }

    /// Renders the table as Markdown; the best cell of a column is bold.
    pub fn render(&self, data: &Data) -> Result<String> {
        let commands: Vec<_> = self.commands().collect();
        let measured: Vec<_> = data.cells.iter().map(|cell| cell.command.clone()).collect();
        ensure!(commands == measured, "the data of {} is of other commands", self.name);
        let titles = self.columns.iter().map(|(name, _)| name.as_str());
        let titles: Vec<_> = [self.unit()].into_iter().chain(titles).collect();
        let rows = match self.shown {
            Shown::Phases(what) => phases::rows(data, what)?,
            _ => self.rows(data)?,
        };
        Ok(table(&titles.join(" | "), rows))
    }

    fn rows(&self, data: &Data) -> Result<Vec<Vec<String>>> {
        let width = self.columns.len();
        let values = data.cells.iter().map(|cell| self.value(cell)).collect::<Result<Vec<_>>>()?;
        let best = |column: usize| {
            values.iter().skip(column).step_by(width).copied().fold(f64::INFINITY, f64::min)
        };
        let is_compared = self.lines.len() > 1 && !matches!(self.shown, Shown::Beside(_));
        let mut rows = Vec::new();
        for (line, (name, _)) in self.lines.iter().enumerate() {
            let mut row = vec![name.clone()];
            for column in 0..width {
                let at = line * width + column;
                let is_best = is_compared && values[at] <= best(column);
                let mark = if is_best { "**" } else { "" };
                let shown = self.show(&data.cells[at], values[at], at)?;
                let (number, rest) = shown.split_once(' ').unwrap_or((&shown, ""));
                let gap = if rest.is_empty() { "" } else { " " };
                row.push(format!("{mark}{number}{mark}{gap}{rest}"));
            }
            rows.push(row);
        }
        Ok(rows)
    }

    /// Returns the head of the first column: the unit of the cells, if it is not that of a WAF.
    const fn unit(&self) -> &'static str {
        match self.shown {
            Shown::SecondsPerGib => "s per GiB of the guest",
            Shown::Phases(OfPhase::Seconds) => "s",
            _ => "",
        }
    }

    /// Returns the part of a report that is kept.
    pub fn kept(&self, report: &Value) -> Value {
        let mut report = report.clone();
        match self.shown {
            Shown::Phases(_) => phases::condense(&mut report),
            _ => drop(report.as_object_mut().and_then(|it| it.remove("phases"))),
        }
        report
    }

    /// Returns the figure by which cells are compared.
    pub fn value(&self, cell: &Cell) -> Result<f64> {
        match self.shown {
            Shown::Waf | Shown::Beside(_) | Shown::Phases(_) => cell.number("total_waf"),
            Shown::SecondsPerGib => {
                let gib = cell.number("guest_blocks")? * 4096.0 / f64::from(1 << 30);
                Ok(cell.number("device_seconds")? / gib)
            }
            Shown::Trims => cell.number("punches"),
        }
    }

    fn show(&self, cell: &Cell, value: f64, at: usize) -> Result<String> {
        Ok(match self.shown {
            Shown::Beside(others) if !others[at].is_empty() => {
                format!("{value:.2} for {}", others[at])
            }
            Shown::Trims => {
                let discards = cell.number("discards")?;
                let [merged, each] = [value, discards].map(|count| count * TRIM_SECONDS);
                format!("{value} for {discards} ({merged:.1} s for {each:.1} s)")
            }
            Shown::Waf if cell.number("host_waf")? > 1.01 => {
                let (host, device) = (cell.number("host_waf")?, cell.number("device_waf")?);
                format!("{value:.2} ({host:.2} x {device:.2})")
            }
            Shown::Waf | Shown::Beside(_) | Shown::SecondsPerGib | Shown::Phases(_) => {
                format!("{value:.2}")
            }
        })
    }

    /// Returns the recordings that it replays.
    pub fn traces(&self) -> impl Iterator<Item = String> {
        let options = self.commands().flatten().collect::<Vec<_>>();
        let is_trace = |pair: &[String]| (pair[0] == "--trace").then(|| pair[1].clone());
        let traces: BTreeSet<_> = options.windows(2).filter_map(is_trace).collect();
        traces.into_iter()
    }
}

pub fn named(names: &[&str], option: impl Fn(&str) -> String) -> Vec<(String, Vec<String>)> {
    names.iter().map(|name| ((*name).to_owned(), vec![option(name)])).collect()
}

pub fn column(name: &str, options: &[&str]) -> (String, Vec<String>) {
    (name.to_owned(), options.iter().map(|it| (*it).to_owned()).collect())
}

pub fn formats(names: &[&str]) -> Vec<(String, Vec<String>)> {
    named(names, |name| format!("--format={name}"))
}
