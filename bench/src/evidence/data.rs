//! What the replays of a table have said.

use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One command, and its report.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Cell {
    pub command: Vec<String>,
    pub report: Value,
}

impl Cell {
    /// A figure of the report.
    pub fn number(&self, name: &str) -> Result<f64> {
        let command = || format!("no {name} in the report of {}", self.command.join(" "));
        self.report[name].as_f64().with_context(command)
    }
}

/// See the module.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Data {
    /// What was run.
    pub commit: String,
    /// In the order of the table's commands.
    pub cells: Vec<Cell>,
}

impl Data {
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        serde_json::from_str(&text).with_context(|| path.display().to_string())
    }

    /// A line for each cell.
    pub fn write(&self, path: &Path) -> Result<()> {
        let cells = self.cells.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>()?;
        let commit = serde_json::to_string(&self.commit)?;
        let text = format!("{{\"commit\":{commit},\"cells\":[\n{}\n]}}\n", cells.join(",\n"));
        std::fs::write(path, text).with_context(|| path.display().to_string())
    }
}
