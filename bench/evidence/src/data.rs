//! Results of the replays of a table.

use std::path::Path;

use anyhow::{Context, Result};
use flowstone_experiment::command::number;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One command, and its report.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Cell {
    pub command: Vec<String>,
    pub report: Value,
}

impl Cell {
    /// Returns a figure of the report.
    pub fn number(&self, name: &str) -> Result<f64> {
        number(&self.report, name).with_context(|| self.command.join(" "))
    }
}

/// The results of a table.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Data {
    /// The commit that was run.
    pub commit: String,
    /// In the order of the table's commands.
    pub cells: Vec<Cell>,
}

impl Data {
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        serde_json::from_str(&text).with_context(|| path.display().to_string())
    }

    /// Writes one line per cell.
    pub fn write(&self, path: &Path) -> Result<()> {
        let cells = self.cells.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>()?;
        let commit = serde_json::to_string(&self.commit)?;
        let text = format!("{{\"commit\":{commit},\"cells\":[\n{}\n]}}\n", cells.join(",\n"));
        std::fs::write(path, text).with_context(|| path.display().to_string())
    }
}
