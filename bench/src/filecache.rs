//! `flowstone-bench filecache`: simulated savings of the guest's file cache on a trace of file
//! uses.

mod made_up;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use clap::{Args, ValueEnum};
use flowstone_block::parse_size;
use flowstone_experiment::host::{Host, require_commit};
use flowstone_experiment::{Experiment, table};
use flowstone_policy::simulator::{self, Line};
use flowstone_policy::{Link, PolicyKind};

pub use self::made_up::Load;

/// Options.
#[derive(Clone, Debug, Args)]
pub struct FilecacheArgs {
    /// A trace: lines `r|w,FILE,BYTES`, each the use of a whole file.
    #[arg(long, value_name = "FILE", required_unless_present = "load")]
    trace: Option<PathBuf>,
    /// Generated traces instead.
    #[arg(long, value_enum, value_delimiter = ',', conflicts_with = "trace")]
    load: Vec<Load>,
    /// Seed of a generated trace.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Policies: default, multicache, lru, s3fifo, gdsf [default: all].
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    policy: Vec<PolicyKind>,
    /// Sizes of the cache.
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = parse_size)]
    #[arg(required_unless_present = "fraction")]
    bytes: Vec<u64>,
    /// Sizes as parts of the bytes of all files of the trace.
    #[arg(long, value_name = "F", value_delimiter = ',')]
    fraction: Vec<f64>,
    /// Write the figures as JSON; into `docs` only those of a commit.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Part of the time of all reads that is saved.
const SAVED: &str = "saved";

/// Carries out the subcommand.
pub fn filecache(args: &FilecacheArgs) -> Result<()> {
    args.json.iter().try_for_each(|path| require_commit(path))?;
    let kinds = if args.policy.is_empty() { &PolicyKind::ALL[..] } else { &args.policy };
    let host = Host::inspect(Vec::new(), Path::new("."));
    let (link, mut experiment) = (Link::default(), Experiment::new("filecache", host));
    for (name, trace) in args.traces()? {
        for (size, bytes) in args.sizes(&trace) {
            for kind in kinds {
                let done = simulator::run(&mut *kind.build(bytes, link), &trace, link);
                let figures = [
                    (SAVED, done.saved_seconds / done.all_seconds),
                    ("requests", done.requests as f64),
                    ("hits", done.hits as f64),
                    ("hit_bytes", done.hit_bytes as f64),
                    ("read_bytes", done.read_bytes as f64),
                ];
                experiment.add(&format!("{name}, {size}"), kind.name(), &figures);
            }
        }
    }
    println!("{}", experiment.page(&render(&experiment)));
    args.json.as_ref().map_or(Ok(()), |path| experiment.write(path))
}

/// Renders the table.
pub fn render(experiment: &Experiment) -> String {
    let points = experiment.points();
    let policies = points.first().map_or(Vec::new(), |point| experiment.contenders(point));
    let rows = points.iter().map(|point| {
        let saved = |policy: &&str| experiment.at(point, policy).cell(SAVED, 3);
        [(*point).to_owned()].into_iter().chain(policies.iter().map(saved)).collect()
    });
    let titles = format!("part of the read time saved, cache of | `{}`", policies.join("` | `"));
    table(&titles, rows)
}

impl FilecacheArgs {
    fn traces(&self) -> Result<Vec<(String, Vec<Line>)>> {
        let Some(path) = &self.trace else {
            let named = |load: &Load| {
                let name = load.to_possible_value().map(|it| it.get_name().to_owned());
                (name.unwrap_or_default(), load.lines(self.seed))
            };
            return Ok(self.load.iter().map(named).collect());
        };
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).with_context(|| format!("read {name}"))?;
        let lines = simulator::parse(&text).map_err(|why| anyhow!("{name}: {why}"))?;
        Ok(vec![(name, lines)])
    }

    /// Returns all sizes, with their names.
    fn sizes(&self, trace: &[Line]) -> Vec<(String, u64)> {
        let files: HashMap<_, _> = trace.iter().map(|line| (line.file, line.bytes)).collect();
        let all: u64 = files.values().sum();
        let of_part = |part: &f64| (format!("{:.0} %", part * 100.0), (all as f64 * part) as u64);
        let of_bytes = |bytes: &u64| (format!("{} MiB", bytes >> 20), *bytes);
        self.bytes.iter().map(of_bytes).chain(self.fraction.iter().map(of_part)).collect()
    }
}
