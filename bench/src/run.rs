//! Options of all experiments, and the use of their results.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::{Arg, Args};
use flowstone_block::parse_size;
use flowstone_experiment::Experiment;
use flowstone_experiment::host::{Host, commit, require_commit};

use crate::place::Place;
use crate::point::selected;

/// See the module.
#[derive(Clone, Debug, Args)]
pub struct Run {
    /// Rounds; each measures everything once.
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
    /// Directory of the images, on the file system to be measured.
    #[arg(long, default_value = "target/bench-data")]
    pub dir: PathBuf,
    /// Write every figure of every round as JSON; into `docs` only those of a commit.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Add the figures to those of earlier runs in this file.
    #[arg(long, value_name = "FILE")]
    pub keep: Option<PathBuf>,
}

/// Options of the commands that measure disks of one size for some time.
#[derive(Clone, Debug, Args)]
pub struct Base {
    /// Measured seconds per point, round and contender.
    #[arg(long, default_value_t = 1.0)]
    pub runtime: f64,
    /// Size of the disks.
    #[arg(long, default_value = "1G", value_parser = parse_size)]
    pub size: u64,
    #[command(flatten)]
    pub run: Run,
    #[command(flatten)]
    pub place: Place,
}

impl Base {
    /// Makes the directory, and an experiment with the figures of earlier runs with this size and
    /// time.
    pub fn experiment(&self, of: &str) -> Result<Experiment> {
        self.run.experiment(&format!("{of} {} {}", self.size, self.runtime))
    }
}

/// Returns a change of the defaults of these options, for `#[command(mut_args(...))]`.
pub fn defaults(of: &'static [(&str, &str)]) -> impl FnMut(Arg) -> Arg {
    move |arg: Arg| match of.iter().find(|(name, _)| arg.get_id() == name) {
        Some((_, value)) => arg.default_value(*value),
        None => arg,
    }
}

impl Run {
    /// Makes the directory, and an experiment with the figures of earlier runs of the same kind.
    pub fn experiment(&self, of: &str) -> Result<Experiment> {
        std::fs::create_dir_all(&self.dir)?;
        self.experiment_on(Host::inspect(Vec::new(), &self.dir), of)
    }

    /// Makes an experiment of a host with the figures of earlier runs of the same kind.
    pub fn experiment_on(&self, host: Host, of: &str) -> Result<Experiment> {
        self.json.iter().chain(&self.keep).try_for_each(|path| require_commit(path))?;
        let experiment = Experiment::new(&format!("{of} at {}", commit()), host);
        self.keep.iter().try_fold(experiment, |experiment, path| experiment.with_kept(path))
    }

    /// Writes the figures, if requested.
    pub fn save(&self, experiment: &Experiment) -> Result<()> {
        self.json.iter().chain(&self.keep).try_for_each(|path| experiment.write(path))
    }

    /// Prints the table as it stands on its page, and writes the figures.
    pub fn publish(
        &self,
        render: impl Fn(&Experiment) -> String,
        experiment: &Experiment,
    ) -> Result<()> {
        println!("{}", experiment.page(&render(experiment)));
        self.save(experiment)
    }
}

/// Returns the rows of which the name contains a pattern; all of them if there are no patterns.
pub fn choose<Row: Clone>(
    rows: &[Row],
    patterns: &[String],
    name: impl Fn(&Row) -> &str,
) -> Result<Vec<Row>> {
    let names: Vec<&str> = rows.iter().map(&name).collect();
    let chosen = rows.iter().filter(|row| selected(name(row), patterns)).cloned();
    let chosen: Vec<Row> = chosen.collect();
    ensure!(!chosen.is_empty(), "nothing matches {patterns:?}; there are {}", names.join(", "));
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_chosen_by_parts_of_their_names() {
        let chosen = |only: &[&str]| {
            let only: Vec<String> = only.iter().map(|&it| it.to_owned()).collect();
            choose(&["xfs", "loop-bfq", "loop-kyber"], &only, |name| name)
        };
        assert_eq!(chosen(&["loop"]).unwrap(), ["loop-bfq", "loop-kyber"]);
        assert_eq!(chosen(&[]).unwrap().len(), 3);
        assert!(chosen(&["ext4"]).unwrap_err().to_string().contains("there are xfs, loop-bfq"));
    }
}
