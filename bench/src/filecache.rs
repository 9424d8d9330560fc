//! `flowstone-bench filecache`: simulated savings of the guest's file cache on a trace of file
//! uses.

mod made_up;

use flowstone_block::parse_size;
use std::collections::HashMap;
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow};
use clap::Args;
use flowstone_policy::simulator::{self, Line};
use flowstone_policy::{Link, PolicyKind};
use serde::Serialize;

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

/// The result of one policy at one size.
#[derive(Debug, Serialize)]
struct Row {
    policy: &'static str,
    bytes: u64,
    requests: u64,
    hits: u64,
    hit_bytes: u64,
    read_bytes: u64,
    saved_seconds: f64,
    /// `saved_seconds` as a part of the time of all reads.
    saved: f64,
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
    if !args.json {
        println!(
            "| bytes | policy | hits | hit bytes | bytes read | time saved |\n|---:|---|---:|---:|---:|---:|"
        );
    }
    for bytes in args.sizes(&trace) {
        for kind in kinds {
            print(&run(*kind, bytes, &trace), args.json)?;
        }
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

fn run(kind: PolicyKind, bytes: u64, trace: &[Line]) -> Row {
    let link = Link::default();
    let done = simulator::run(&mut *kind.build(bytes, link), trace, link);
    Row {
        policy: kind.name(),
        bytes,
        requests: done.requests,
        hits: done.hits,
        hit_bytes: done.hit_bytes,
        read_bytes: done.read_bytes,
        saved_seconds: done.saved_seconds,
        saved: done.saved_seconds / done.all_seconds,
    }
}

fn print(row: &Row, json: bool) -> Result<()> {
    if json {
        println!("{}", serde_json::to_string(row)?);
        return Ok(());
    }
    let Row { policy, bytes, hits, hit_bytes, read_bytes, saved, .. } = row;
    println!("| {bytes} | {policy} | {hits} | {hit_bytes} | {read_bytes} | {saved:.3} |");
    Ok(())
}
