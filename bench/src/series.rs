//! Figures by name, round after round, and their summary.
//!
//! They can be kept in a file, so that a long run can be done in parts: each adds its rounds.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::sample::median;

/// Figures by name, in the order of rounds.
#[derive(Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct Series {
    /// Commit and configuration; figures of others are not added.
    of: String,
    figures: BTreeMap<String, Vec<f64>>,
}

impl Series {
    /// Makes an empty series.
    pub fn new(of: &str) -> Self {
        Series { of: of.to_owned(), figures: BTreeMap::new() }
    }

    /// Loads the figures kept by an earlier run of the same kind; empty if there is no file.
    pub fn load(path: &Path, of: &str) -> Result<Self> {
        if !path.exists() {
            return Ok(Self::new(of));
        }
        let text = std::fs::read_to_string(path)?;
        let kept: Self = serde_json::from_str(&text)
            .with_context(|| format!("{} is no file of kept figures", path.display()))?;
        ensure!(kept.of == of, "{} is of {}, this run is of {of}", path.display(), kept.of);
        Ok(kept)
    }

    /// Writes them to a file.
    pub fn save(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)?;
        std::fs::write(path, text + "\n").with_context(|| format!("write {}", path.display()))
    }

    /// Adds the figure of a round.
    pub fn add(&mut self, name: &str, figure: f64) {
        self.figures.entry(name.to_owned()).or_default().push(figure);
    }

    /// Returns the figures of a name.
    pub fn of(&self, name: &str) -> &[f64] {
        self.figures.get(name).map_or(&[], Vec::as_slice)
    }

    /// Returns the ratios of two names, round by round.
    pub fn ratios(&self, name: &str, to: &str) -> Vec<f64> {
        self.of(name).iter().zip(self.of(to)).map(|(one, other)| one / other).collect()
    }
}

/// The summary of several figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The lowest.
    pub min: f64,
    /// The highest.
    pub max: f64,
    /// The mean.
    pub mean: f64,
    /// The sample standard deviation; zero for one figure.
    pub deviation: f64,
}

impl Spread {
    /// Summarises figures; `None` if there are none.
    pub fn of(figures: &[f64]) -> Option<Self> {
        let count = figures.len() as f64;
        let mean = figures.iter().sum::<f64>() / count;
        let squares: f64 = figures.iter().map(|figure| (figure - mean).powi(2)).sum();
        Some(Spread {
            median: median(figures.to_vec())?,
            min: figures.iter().copied().reduce(f64::min)?,
            max: figures.iter().copied().reduce(f64::max)?,
            mean,
            deviation: if figures.len() > 1 { (squares / (count - 1.0)).sqrt() } else { 0.0 },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_that_of_a_sample() {
        let spread = Spread::of(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).unwrap();
        assert_eq!((spread.median, spread.min, spread.max, spread.mean), (4.5, 2.0, 9.0, 5.0));
        assert!((spread.deviation - (32.0_f64 / 7.0).sqrt()).abs() < 1e-12);
        assert_eq!(Spread::of(&[3.0]).unwrap().deviation, 0.0);
        assert!(Spread::of(&[]).is_none());
    }

    #[test]
    fn ratios_are_those_of_a_round() {
        let mut series = Series::new("test");
        [10.0, 20.0].into_iter().for_each(|it| series.add("raw", it));
        [20.0, 30.0, 50.0].into_iter().for_each(|it| series.add("log", it));
        assert_eq!(series.ratios("log", "raw"), [2.0, 1.5]);
        assert!(series.ratios("log", "qcow2").is_empty());
    }

    #[test]
    fn kept_figures_come_back_and_those_of_something_else_do_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kept.json");
        assert_eq!(Series::load(&path, "a").unwrap(), Series::new("a"));
        let mut series = Series::new("a");
        series.add("raw", 1.5);
        series.save(&path).unwrap();
        assert_eq!(Series::load(&path, "a").unwrap(), series);
        assert!(Series::load(&path, "b").unwrap_err().to_string().contains("this run is of b"));
        std::fs::write(&path, "{").unwrap();
        assert!(Series::load(&path, "a").is_err());
    }
}
