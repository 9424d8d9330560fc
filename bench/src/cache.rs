//! `flowstone-bench cache`: what share of a trace's accesses each cache policy answers.
//!
//! A trace is CSV, plain or compressed with zstd, with a line `time,op,offset,length` for each request, in
//! bytes; reads (R), writes (W) and accesses of an unknown kind (A) count alike, for each block of 4 KiB that
//! they touch, and all may take room in the cache. Flushes and the like are passed over.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;
use flowstone_cache::{Access, BlockId, FREQ_THRESHOLD, Outcome, Policy, PolicyKind, VmShare};
use serde::Serialize;

use crate::size::parse_size;

const BLOCK_BYTES: u64 = 4096;
/// First bytes of a zstd frame (RFC 8878, 3.1.1).
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];
/// A longer request is a mistake in the trace.
const REQUEST_BYTES_MAX: u64 = 1 << 30;

/// Options.
#[derive(Clone, Debug, Args)]
pub struct CacheArgs {
    /// The trace: CSV of time, op, offset and length, plain or zstd.
    #[arg(long, value_name = "FILE")]
    trace: PathBuf,
    /// Policies, of multicache, multicache-relative, lru, s3fifo and default; all of them if none is named.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    policy: Vec<PolicyKind>,
    /// Sizes of the cache.
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = parse_size)]
    #[arg(required_unless_present = "fraction")]
    bytes: Vec<u64>,
    /// Sizes as parts of the trace's footprint, the blocks that it touches.
    #[arg(long, value_name = "F", value_delimiter = ',', value_parser = parse_fraction)]
    fraction: Vec<f64>,
    /// Weight from which `multicache` and `multicache-relative` keep a block.
    #[arg(long, value_name = "W", default_value_t = FREQ_THRESHOLD)]
    freq_threshold: f64,
    /// Print one JSON object per policy and size, a line each.
    #[arg(long)]
    json: bool,
}

/// What one policy does with one size.
#[derive(Debug, Serialize)]
struct Line {
    policy: &'static str,
    bytes: u64,
    requests: u64,
    hits: u64,
    hit_ratio: f64,
    insertions: u64,
}

/// Runs the subcommand.
pub fn cache(args: &CacheArgs) -> Result<()> {
    let blocks = read(&args.trace)?;
    let footprint = blocks.iter().collect::<HashSet<_>>().len() as u64;
    let parts = args.fraction.iter().map(|part| (footprint as f64 * part) as u64 * BLOCK_BYTES);
    let sizes: Vec<u64> = args.bytes.iter().copied().chain(parts).collect();
    let too_small = sizes.iter().find(|bytes| **bytes < BLOCK_BYTES);
    ensure!(too_small.is_none(), "a cache holds at least one block of 4 KiB; give a larger size");
    let policies = if args.policy.is_empty() { &PolicyKind::ALL[..] } else { &args.policy };
    if !args.json {
        let mib = footprint as f64 * BLOCK_BYTES as f64 / f64::from(1 << 20);
        println!("{} accesses, {footprint} blocks ({mib:.0} MiB)\n", blocks.len());
        println!(
            "| policy | cache, bytes | hit ratio | insertions per access |\n|---|---|---|---|"
        );
    }
    for policy in policies {
        for bytes in &sizes {
            let capacity = usize::try_from(bytes / BLOCK_BYTES)?;
            let mut cache = policy.build(capacity, args.freq_threshold);
            let line = simulate(policy.name(), *bytes, &mut *cache, &blocks);
            if args.json {
                println!("{}", serde_json::to_string(&line)?);
            } else {
                let per_access = line.insertions as f64 / line.requests.max(1) as f64;
                let Line { policy, bytes, hit_ratio, .. } = line;
                println!("| {policy} | {bytes} | {hit_ratio:.3} | {per_access:.3} |");
            }
        }
    }
    Ok(())
}

fn simulate(name: &'static str, bytes: u64, cache: &mut dyn Policy, blocks: &[u64]) -> Line {
    let (mut hits, mut insertions) = (0, 0);
    let mut evicted = Vec::new();
    for block in blocks {
        let access = Access { block: BlockId(*block), share: VmShare::ALONE };
        match cache.access(access, &mut evicted) {
            Outcome::Hit(_) => hits += 1,
            Outcome::Inserted(_) => insertions += 1,
            Outcome::Refused => {}
        }
        evicted.clear();
    }
    let requests = blocks.len() as u64;
    let hit_ratio = hits as f64 / requests.max(1) as f64;
    Line { policy: name, bytes, requests, hits, hit_ratio, insertions }
}

/// The blocks that a trace touches, in order.
fn read(path: &Path) -> Result<Vec<u64>> {
    let mut file = File::open(path).with_context(|| format!("open {}", path.display()))?;
    let mut magic = [0; ZSTD_MAGIC.len()];
    let is_zstd = file.read_exact(&mut magic).is_ok() && magic == ZSTD_MAGIC;
    let file = File::open(path)?;
    let text: Box<dyn Read> =
        if is_zstd { Box::new(zstd::Decoder::new(file)?) } else { Box::new(file) };
    let mut blocks = Vec::new();
    for (index, line) in BufReader::new(text).lines().enumerate() {
        let line = line.with_context(|| format!("read {}", path.display()))?;
        let touched = touched(&line)
            .with_context(|| format!("{} line {}: {line:?}", path.display(), index + 1))?;
        blocks.extend(touched);
    }
    ensure!(!blocks.is_empty(), "{}: there is no read, write or access in it", path.display());
    Ok(blocks)
}

/// The blocks that one line touches; none if it is no access, or the heading.
fn touched(line: &str) -> Result<std::ops::Range<u64>> {
    let mut fields = line.trim().split(',');
    let op = fields.nth(1).unwrap_or_default();
    if !matches!(op, "R" | "W" | "A") {
        return Ok(0..0);
    }
    let mut number = |what| {
        let field = fields.next().with_context(|| format!("no {what}"))?;
        field.parse::<u64>().with_context(|| format!("{what} {field:?} is no number"))
    };
    let (offset, bytes) = (number("offset")?, number("length")?);
    ensure!(bytes <= REQUEST_BYTES_MAX, "a request of {bytes} bytes");
    let end = offset.checked_add(bytes).context("it ends beyond 2^64")?;
    Ok(offset / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES).max(offset / BLOCK_BYTES))
}

fn parse_fraction(text: &str) -> Result<f64, String> {
    let part: f64 = text.parse().map_err(|_| format!("{text:?} is not a number"))?;
    if part > 0.0 && part <= 1.0 {
        Ok(part)
    } else {
        Err(format!("{text} is not a part of the footprint; use a number up to 1, such as 0.1"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_touches_every_block_that_it_shares_a_byte_with() {
        for (line, blocks) in [
            ("0,R,0,4096", 0..1),
            ("0,W,4095,2", 0..2),
            ("7,A,8192,8192", 2..4),
            ("0,R,512,0", 0..1),
            ("0,F,0,0", 0..0),
            ("timestamp_us,op,offset_bytes,length_bytes", 0..0),
        ] {
            assert_eq!(touched(line).unwrap(), blocks, "{line}");
        }
        for line in ["0,R,x,1", "0,R,1", "0,R,18446744073709551615,2", "0,W,0,99999999999"] {
            assert!(touched(line).is_err(), "{line}");
        }
    }

    #[test]
    fn a_trace_may_be_compressed() {
        let text = "timestamp_us,op,offset_bytes,length_bytes\n0,R,0,8192\n1,W,0,1\n";
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace");
        for bytes in [text.as_bytes().to_vec(), zstd::encode_all(text.as_bytes(), 1).unwrap()] {
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(read(&path).unwrap(), [0, 1, 0]);
        }
    }
}
