//! Results of the replays of a table.

use std::path::Path;

use anyhow::{Context, Result};
use flowstone_experiment::command::number;
use flowstone_experiment::host::Host;
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
    /// The machine, and the date; older results lack them.
    #[serde(default)]
    pub host: Option<Host>,
    /// In the order of the table's commands.
    pub cells: Vec<Cell>,
}

impl Data {
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        serde_json::from_str(&text).with_context(|| path.display().to_string())
    }

    /// Says what was run, when and where, in a line of a page.
    pub fn origin(&self) -> String {
        let Self { commit, host, .. } = self;
        host.as_ref().map_or_else(
            || format!("At {commit}"),
            |Host { date, cpu, kernel, .. }| format!("{date}, at {commit}, {cpu}, kernel {kernel}"),
        )
    }

    /// Writes one line per cell.
    pub fn write(&self, path: &Path) -> Result<()> {
        let cells = self.cells.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>()?;
        let [commit, host] =
            [serde_json::to_string(&self.commit)?, serde_json::to_string(&self.host)?];
        let cells = cells.join(",\n");
        let text = format!("{{\"commit\":{commit},\"host\":{host},\"cells\":[\n{cells}\n]}}\n");
        std::fs::write(path, text).with_context(|| path.display().to_string())
    }
}
