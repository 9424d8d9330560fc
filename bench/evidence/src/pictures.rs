//! The pictures of the pages, drawn from the data of their tables.

use std::path::Path;

use anyhow::{Context, Result};
use flowstone_block::parse_size;
use flowstone_experiment::plot::{Axes, Lines, draw};

use super::RESULTS;
use super::data::Data;
use super::phases;
use super::table::{Shown, Table};
use super::tables::tables;

/// A picture of a table, which has the table's name.
pub struct Picture {
    table: &'static str,
    /// Title of the x axis: the columns, or the runs of a guest.
    x: &'static str,
    is_log: bool,
}

pub const PICTURES: [Picture; 7] = [
    by_column("erase-block", "erase block, KiB", true),
    by_column("unit", "mapping unit, KiB", true),
    by_column("spare", "over-provisioning, %", false),
    by_column("fill", "disk / drive", false),
    by_run("postmark-runs"),
    by_run("files-runs"),
    by_run("sort-images"),
];

const fn by_column(table: &'static str, x: &'static str, is_log: bool) -> Picture {
    Picture { table, x, is_log }
}

const fn by_run(table: &'static str) -> Picture {
    Picture { table, x: "run", is_log: false }
}

impl Picture {
    /// Returns its file in the project.
    pub fn file(&self) -> String {
        format!("docs/evidence/{}.svg", self.table)
    }

    /// Draws it from the results below `root`, if there are any.
    pub fn draw(&self, root: &Path, to: &Path) -> Result<()> {
        let path = root.join(RESULTS).join(format!("{}.json", self.table));
        if !path.exists() {
            return Ok(());
        }
        let data = Data::read(&path)?;
        let table = tables(false).into_iter().find(|table| table.name == self.table);
        let table = table.with_context(|| format!("there is no table {}", self.table))?;
        let lines = match table.shown {
            Shown::Phases(_) => of_runs(&table, &data)?,
            _ => of_columns(&table, &data)?,
        };
        let below = format!("At {}: flowstone-bench evidence --only {}", data.commit, self.table);
        draw(to, &Axes { x: self.x, y: "total WAF", is_log: self.is_log, below }, &lines)
    }
}

/// Returns a line for each of the table's.
fn of_columns(table: &Table, data: &Data) -> Result<Lines> {
    let mut lines = Lines::new();
    let width = table.columns.len();
    for (index, cell) in data.cells.iter().enumerate() {
        let (line, column) = (&table.lines[index / width].0, &table.columns[index % width].0);
        lines.entry(line.clone()).or_default().push((number_in(column)?, table.value(cell)?));
    }
    Ok(lines)
}

/// Returns a size in KiB, a percentage, or a fraction.
fn number_in(column: &str) -> Result<f64> {
    let number = column.strip_suffix('%').unwrap_or(column);
    match number.parse() {
        Ok(number) => Ok(number),
        Err(_) => Ok(parse_size(column).map_err(anyhow::Error::msg)? as f64 / 1024.0),
    }
}

/// Returns a line for each column of a table of runs.
fn of_runs(table: &Table, data: &Data) -> Result<Lines> {
    let mut lines = Lines::new();
    for ((name, _), cell) in table.columns.iter().zip(&data.cells) {
        let phases = cell.report["phases"].as_array().context("no phases")?;
        for phase in phases {
            let run = phase["name"].as_str().and_then(|name| name.strip_prefix("run "));
            let Some(run) = run.and_then(|run| run.parse().ok()) else { continue };
            lines.entry(name.clone()).or_default().push((run, phases::waf(phase)?));
        }
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_show_what_the_data_says() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let place = tempfile::tempdir().unwrap();
        let drawn = place.path().join("drawn.svg");
        for picture in &PICTURES {
            picture.draw(&root, &drawn).unwrap();
            let both = [drawn.clone(), root.join(picture.file())];
            let [drawn, kept] = both.map(|it| std::fs::read(it).unwrap());
            let name = picture.table;
            assert!(drawn == kept, "{name}: run `flowstone-bench evidence --render`");
        }
    }

    #[test]
    fn a_column_has_a_number() {
        for (column, number) in [("512K", 512.0), ("8M", 8192.0), ("28%", 28.0), ("0.65", 0.65)] {
            assert_eq!(number_in(column).unwrap(), number);
        }
        assert!(number_in("never").is_err());
    }
}
