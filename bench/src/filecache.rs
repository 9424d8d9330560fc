//! `flowstone-bench filecache`: simulated savings of the guest's file cache on a trace of file
//! uses.

mod made_up;

use flowstone_block::parse_size;
use std::collections::HashMap;
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow};
use clap::Args;
use flowstone_experiment::table;
use flowstone_policy::simulator::{self, Line, Outcome};
use flowstone_policy::{Link, PolicyKind};
use serde_json::{Value, json};

pub use self::made_up::Load;

/// Options.
#[derive(Clone, Debug, Args)]
pub struct FilecacheArgs {
    /// A trace: lines `r|w,FILE,BYTES`, each the use of a whole file.
    #[arg(long, value_name = "FILE", required_unless_present = "load")]
    trace: Option<PathBuf>,
    /// A generated trace instead.
    #[arg(long, value_enum, conflicts_with = "trace")]
    load: Option<Load>,
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
    /// Print one JSON object per policy and size, one per line.
    #[arg(long)]
    json: bool,
}

/// Carries out the subcommand.
pub fn filecache(args: &FilecacheArgs) -> Result<()> {
    let trace = match (&args.trace, args.load) {
        (Some(path), _) => {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("read {}", path.display()))?;
            simulator::parse(&text).map_err(|why| anyhow!("{}: {why}", path.display()))?
        }
        (None, Some(load)) => load.lines(args.seed),
        (None, None) => unreachable!("clap asks for one of them"),
    };
    let kinds = if args.policy.is_empty() { &PolicyKind::ALL[..] } else { &args.policy };
    let (link, mut rows) = (Link::default(), Vec::new());
    for bytes in args.sizes(&trace) {
        for kind in kinds {
            let done = simulator::run(&mut *kind.build(bytes, link), &trace, link);
            if args.json {
                println!("{}", json(kind.name(), bytes, &done));
            } else {
                rows.push(row(kind.name(), bytes, &done));
            }
        }
    }
    if !args.json {
        println!("{}", table(TITLES, rows));
    }
    Ok(())
}

impl FilecacheArgs {
    fn sizes(&self, trace: &[Line]) -> Vec<u64> {
        let files: HashMap<_, _> = trace.iter().map(|line| (line.file, line.bytes)).collect();
        let all: u64 = files.values().sum();
        let parts = self.fraction.iter().map(|part| (all as f64 * part) as u64);
        self.bytes.iter().copied().chain(parts).collect()
    }
}

/// Returns the result of one policy at one size as JSON.
fn json(policy: &str, bytes: u64, done: &Outcome) -> Value {
    json!({
        "policy": policy,
        "bytes": bytes,
        "requests": done.requests,
        "hits": done.hits,
        "hit_bytes": done.hit_bytes,
        "read_bytes": done.read_bytes,
        "saved_seconds": done.saved_seconds,
        "saved": done.saved_seconds / done.all_seconds,
    })
}

const TITLES: &str = "bytes | policy | hits | hit bytes | bytes read | time saved";

/// Returns the same as a row of the table.
fn row(policy: &str, bytes: u64, done: &Outcome) -> Vec<String> {
    let [bytes, hits] = [bytes, done.hits].map(|it| it.to_string());
    let [hit_bytes, read_bytes] = [done.hit_bytes, done.read_bytes].map(|it| it.to_string());
    let saved = format!("{:.3}", done.saved_seconds / done.all_seconds);
    vec![bytes, policy.to_owned(), hits, hit_bytes, read_bytes, saved]
}
