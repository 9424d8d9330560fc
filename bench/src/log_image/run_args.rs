//! Common options of the commands that print a table: the rows to measure, where, and the use of
//! the figures.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use clap::Args;

use super::contender::Place;
use super::default_dir;
use crate::document;
use crate::point::selected;
use crate::series::Series;

/// See the module.
#[derive(Clone, Debug, Args)]
pub struct RunArgs {
    /// Only rows whose name contains this; may be given several times.
    #[arg(long, value_name = "PATTERN")]
    pub only: Vec<String>,
    /// Add to the figures that earlier runs have kept in this file, and keep all of them there.
    #[arg(long, value_name = "FILE")]
    pub keep: Option<PathBuf>,
    /// Rewrite the table between the command's markers in this file.
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// Directory of the images, on the file system to be measured.
    #[arg(long, default_value_os_t = default_dir())]
    pub dir: PathBuf,
    #[command(flatten)]
    pub place: Place,
}

impl RunArgs {
    /// Returns the selected rows of a table.
    pub fn choose<'rows, Row>(
        &self,
        rows: &'rows [Row],
        name: impl Fn(&Row) -> &'static str,
    ) -> Result<Vec<&'rows Row>> {
        let chosen: Vec<&Row> = rows.iter().filter(|row| selected(name(row), &self.only)).collect();
        let names: Vec<&str> = rows.iter().map(name).collect();
        ensure!(
            !chosen.is_empty(),
            "nothing matches {:?}; there are {}",
            self.only,
            names.join(", ")
        );
        Ok(chosen)
    }

    /// Returns the figures of earlier runs of the same kind, if they are kept.
    pub fn series(&self, of: &str) -> Result<Series> {
        self.keep.as_ref().map_or_else(|| Ok(Series::new(of)), |path| Series::load(path, of))
    }

    /// Keeps the figures for later runs, if requested.
    pub fn save(&self, series: &Series) -> Result<()> {
        self.keep.as_ref().map_or(Ok(()), |path| series.save(path))
    }

    /// Prints a table, and puts it between these markers of the document, if there is one.
    pub fn publish(&self, marker: &str, text: &str) -> Result<()> {
        println!("{text}");
        let update = |path: &Path| document::update(path, marker, text);
        self.markdown.as_deref().map_or(Ok(()), update)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        run: RunArgs,
    }

    #[test]
    fn rows_are_chosen_by_parts_of_their_names() {
        let chosen = |only: &[&str]| {
            let options = only.iter().flat_map(|pattern| ["--only", pattern]);
            let run = Command::parse_from(["bench"].into_iter().chain(options)).run;
            run.choose(&["xfs", "loop-bfq", "loop-kyber"], |name| *name)
                .map(|rows| rows.into_iter().copied().collect::<Vec<_>>())
        };
        assert_eq!(chosen(&["loop"]).unwrap(), ["loop-bfq", "loop-kyber"]);
        assert_eq!(chosen(&[]).unwrap().len(), 3);
        assert!(chosen(&["ext4"]).unwrap_err().to_string().contains("there are xfs, loop-bfq"));
    }
}
