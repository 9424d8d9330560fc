//! An experiment: contenders at points, measured round by round.
//!
//! ```text
//!   round 1   point 1: A B C   point 2: A B C      figures by (point, contender), one a round
//!   round 2   point 1: B C A   point 2: B C A  ──► ratio within a round, median of all rounds
//!   ...                                            and its 95 % interval ──► Markdown, JSON
//! ```
//!
//! Interleaving spreads other activity of the machine over all contenders alike, and another one
//! begins each round, so that none always follows the same one. Rates of different rounds cannot be
//! compared; the ratios within a round can.

pub mod command;
pub mod document;
mod figures;
pub mod host;
mod interval;
pub mod noise;
pub mod plot;
mod table;

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use self::host::Host;

pub use self::figures::{
    CALLS_PER_IO, CPU_US, Figures, GAP_MS, IOPS, KICKS_PER_IO, P50_US, P99_US, figures,
};
pub use self::interval::{interval, median, signed, spread, thousands};
pub use self::table::{Of, table};

/// All figures of a run, with their origin.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Experiment {
    /// Command, commit and configuration; figures of others are not added.
    of: String,
    /// The command line.
    command: Vec<String>,
    /// Machine, commit and date.
    host: Host,
    /// How it was measured: a paragraph of the page.
    #[serde(default)]
    about: String,
    series: Vec<Series>,
}

/// One figure of a contender at a point, by round; absent where it could not be measured.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
struct Series {
    point: String,
    contender: String,
    figure: String,
    rounds: Vec<Option<f64>>,
}

impl Experiment {
    /// Makes an empty experiment.
    pub fn new(of: &str, host: Host) -> Self {
        let command = std::env::args().collect();
        Self { of: of.to_owned(), command, host, about: String::new(), series: Vec::new() }
    }

    /// Adds the figures kept by an earlier run of the same kind, if the file exists.
    pub fn with_kept(self, path: &Path) -> Result<Self> {
        if !path.exists() {
            return Ok(self);
        }
        let kept = Self::read(path)?;
        let (of, its) = (&self.of, &kept.of);
        ensure!(its == of, "{} is of {its}, this run is of {of}", path.display());
        Ok(Self { series: kept.series, ..self })
    }

    /// Reads the figures of an earlier run.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let read = serde_json::from_str(&text);
        read.with_context(|| format!("{} is no file of kept figures", path.display()))
    }

    /// Writes all figures of all rounds, and their origin.
    pub fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)?;
        std::fs::write(path, text + "\n").with_context(|| format!("write {}", path.display()))
    }

    /// Returns the machine, as it was at the start.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Adds a paragraph that says how it was measured.
    pub fn describe(&mut self, about: &str) {
        let gap = if self.about.is_empty() { "" } else { "\n\n" };
        self.about += &format!("{gap}{about}");
    }

    /// Returns a table with how and where its figures were measured, as it stands on a page.
    pub fn page(&self, table: &str) -> String {
        let arguments = self.command.iter().skip(1).map(String::as_str);
        let command: Vec<_> = ["flowstone-bench"].into_iter().chain(arguments).collect();
        let rounds = self.series.iter().map(|it| it.rounds.len()).max().unwrap_or(0);
        let gap = if self.about.is_empty() { "" } else { "\n\n" };
        format!(
            "{}{gap}{}\n\n{} Most rounds of a point: {rounds}. `--dir` on {}. `{}`",
            self.about,
            table.trim_end(),
            self.host.sentence(),
            self.host.device,
            command.join(" ")
        )
    }

    /// Returns the contenders at a point, in the order of their first figures.
    pub fn contenders(&self, point: &str) -> Vec<&str> {
        let at = self.series.iter().filter(|series| series.point == point);
        distinct(at.map(|series| &*series.contender))
    }

    /// Returns all points, in the order of their first figures.
    pub fn points(&self) -> Vec<&str> {
        distinct(self.series.iter().map(|series| &*series.point))
    }

    /// Measures every contender at every point once in each round, contenders in turn. Points and
    /// contenders have names.
    pub fn run<P, C>(
        &mut self,
        rounds: usize,
        points: &[(impl AsRef<str>, P)],
        contenders: &[(impl AsRef<str>, C)],
        mut measure: impl FnMut(&P, &C) -> Result<Figures>,
    ) -> Result<()> {
        for round in 0..rounds {
            for (name, point) in points {
                self.turn(round, name.as_ref(), contenders, |it| measure(point, it))?;
            }
        }
        Ok(())
    }

    /// Measures every contender at one point once.
    pub fn turn<C>(
        &mut self,
        round: usize,
        point: &str,
        contenders: &[(impl AsRef<str>, C)],
        mut measure: impl FnMut(&C) -> Result<Figures>,
    ) -> Result<()> {
        for (name, contender) in turns(round, contenders) {
            let name = name.as_ref();
            let figures = measure(contender).with_context(|| format!("{point}, {name}"))?;
            self.add(point, name, &figures);
        }
        Ok(())
    }

    /// Adds the figures of a round, and prints them.
    pub fn add(&mut self, point: &str, contender: &str, figures: &[(&'static str, f64)]) {
        let mut text = format!("{point}, {contender}:");
        for (figure, value) in figures {
            let rounds = self.rounds(point, contender, figure);
            rounds.push(value.is_finite().then_some(*value));
            if value.is_finite() {
                text += &format!(" {figure} {value:.2}");
            }
        }
        eprintln!("{text}");
    }

    fn rounds(&mut self, point: &str, contender: &str, figure: &str) -> &mut Vec<Option<f64>> {
        let at = self.series.iter().position(|it| it.is(point, contender, figure));
        let at = at.unwrap_or_else(|| {
            let [point, contender, figure] = [point, contender, figure].map(str::to_owned);
            self.series.push(Series { point, contender, figure, rounds: Vec::new() });
            self.series.len() - 1
        });
        &mut self.series[at].rounds
    }

    fn of(&self, point: &str, contender: &str, figure: &str) -> &[Option<f64>] {
        let found = self.series.iter().find(|it| it.is(point, contender, figure));
        found.map_or(&[], |series| &series.rounds)
    }
}

impl Series {
    fn is(&self, point: &str, contender: &str, figure: &str) -> bool {
        (&*self.point, &*self.contender, &*self.figure) == (point, contender, figure)
    }
}

fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut distinct = Vec::new();
    for name in names {
        if !distinct.contains(&name) {
            distinct.push(name);
        }
    }
    distinct
}

/// Returns all contenders, beginning with another one in each round.
pub fn turns<C>(round: usize, contenders: &[C]) -> impl Iterator<Item = &C> {
    let first = round % contenders.len().max(1);
    contenders[first..].iter().chain(&contenders[..first])
}

#[cfg(test)]
mod tests;
