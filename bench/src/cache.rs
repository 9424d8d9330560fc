//! `flowstone-bench cache`: hit ratios of cache policies on block traces.
//!
//! Several traces are those of VMs that share a cache: they are interleaved so that all of them end
//! together. A VM's size determines its weight.

mod rivals;
mod trace;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use flowstone_block::parse_size;
use flowstone_cache::{BlockId, FREQ_THRESHOLD, Outcome, PolicyKind, VmSize, Vms};
use flowstone_experiment::host::{Host, require_commit};
use flowstone_experiment::plot::{Axes, Lines, draw};
use flowstone_experiment::{Experiment, table};

use self::rivals::{Lirs, Rival, Sieve};
use self::trace::{Accesses, BLOCK_BYTES};

/// Options.
#[derive(Clone, Debug, Args)]
pub struct CacheArgs {
    /// A trace: CSV of time, op, offset and length, plain or zstd; several traces are merged, each
    /// as one VM.
    #[arg(long, value_name = "FILE", required = true)]
    trace: Vec<PathBuf>,
    /// Policies: multicache-count, multicache-weight, multicache-relative, lru, s3fifo, default, as
    /// well as sieve and lirs, which Flowstone does not have [default: all].
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    policy: Vec<Contender>,
    /// Sizes of the cache.
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = parse_size)]
    #[arg(required_unless_present = "fraction")]
    bytes: Vec<u64>,
    /// Sizes as parts of the footprint (all accessed blocks).
    #[arg(long, value_name = "F", value_delimiter = ',', value_parser = parse_fraction)]
    fraction: Vec<f64>,
    /// vCPUs and memory of the VM of each trace, such as 2x4G, in their order [default: all alike].
    #[arg(long, value_name = "CPUSxSIZE", value_delimiter = ',', value_parser = parse_vm)]
    vm: Vec<VmSize>,
    /// Weight from which `multicache` and `multicache-relative` keep a block.
    #[arg(long, value_name = "W", default_value_t = FREQ_THRESHOLD)]
    freq_threshold: f64,
    /// The accesses of the first seconds of each trace fill the cache, and are not counted.
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    warmup: u64,
    /// Write the hit ratios as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the hit ratio over the size, one line per policy.
    #[arg(long, value_name = "SVG")]
    plot: Option<PathBuf>,
}

/// A policy that is compared.
#[derive(Clone, Copy, Debug)]
enum Contender {
    Ours(PolicyKind),
    Sieve,
    Lirs,
}

impl Contender {
    fn all() -> impl Iterator<Item = Self> {
        PolicyKind::ALL.into_iter().map(Self::Ours).chain([Self::Sieve, Self::Lirs])
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Ours(kind) => kind.name(),
            Self::Sieve => "sieve",
            Self::Lirs => "lirs",
        }
    }
}

impl FromStr for Contender {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "sieve" => Ok(Self::Sieve),
            "lirs" => Ok(Self::Lirs),
            ours => ours.parse().map(Self::Ours),
        }
    }
}

/// The result of one policy at one size.
#[derive(Debug)]
struct Line {
    policy: &'static str,
    bytes: u64,
    requests: u64,
    hit_ratio: f64,
    insertions: u64,
    /// One for each trace, if there are several.
    vms: Vec<OfVm>,
}

/// The result of one VM.
#[derive(Clone, Debug, Default)]
struct OfVm {
    requests: u64,
    hits: u64,
    hit_ratio: f64,
}

/// Runs the subcommand.
pub fn cache(args: &CacheArgs) -> Result<()> {
    args.json.iter().try_for_each(|path| require_commit(path))?;
    let warmup = Duration::from_secs(args.warmup);
    let read = |path: &PathBuf| trace::read(path, warmup);
    let traces = args.trace.iter().map(read).collect::<Result<Vec<_>>>()?;
    let sizes_of_vms = match &args.vm[..] {
        [] => vec![VmSize { cpus: 1, memory: 1 << 30 }; traces.len()],
        sizes => sizes.to_vec(),
    };
    ensure!(sizes_of_vms.len() == traces.len(), "give one --vm for each --trace, or none");
    let vms = Arc::new(Vms::new(&sizes_of_vms, (0..).zip(0..traces.len())));
    let blocks = merge(&traces);
    let footprint = blocks.iter().collect::<HashSet<_>>().len() as u64;
    let parts = args.fraction.iter().map(|part| (footprint as f64 * part) as u64 * BLOCK_BYTES);
    let sizes: Vec<u64> = args.bytes.iter().copied().chain(parts).collect();
    let too_small = sizes.iter().find(|bytes| **bytes < BLOCK_BYTES);
    ensure!(too_small.is_none(), "a cache holds at least one block of 4 KiB; give a larger size");
    let all: Vec<_> = Contender::all().collect();
    let policies = if args.policy.is_empty() { &all } else { &args.policy };
    let unmeasured: Vec<_> = traces.iter().map(|trace| trace.unmeasured).collect();
    let mib = footprint as f64 * BLOCK_BYTES as f64 / f64::from(1 << 20);
    println!("{} accesses, {footprint} blocks ({mib:.0} MiB)\n", blocks.len());
    let mut lines = Vec::new();
    for policy in policies {
        for bytes in &sizes {
            let capacity = usize::try_from(bytes / BLOCK_BYTES)?;
            let mut access = match policy {
                Contender::Ours(kind) => ours(*kind, capacity, args.freq_threshold, &vms),
                Contender::Sieve => rival(Sieve::new(capacity)),
                Contender::Lirs => rival(Lirs::new(capacity)),
            };
            let line = simulate(policy.name(), *bytes, &mut access, &blocks, &unmeasured);
            eprintln!("{} in {bytes} bytes: {:.3}", line.policy, line.hit_ratio);
            lines.push(line);
        }
    }
    let of_vms = if traces.len() > 1 { " | hit ratio of each VM" } else { "" };
    let titles = format!("policy | cache, bytes | hit ratio | insertions per access{of_vms}");
    println!("{}", table(&titles, lines.iter().map(row)));
    if let Some(path) = &args.json {
        experiment(&lines).write(path)?;
    }
    args.plot.as_ref().map_or(Ok(()), |path| picture(path, &lines))
}

const HIT_RATIO: &str = "hit_ratio";

/// The hit ratios: sizes are points, policies contend.
fn experiment(lines: &[Line]) -> Experiment {
    let mut experiment = Experiment::new("cache", Host::inspect(Vec::new(), Path::new(".")));
    for line in lines {
        let size = format!("{} MiB", line.bytes >> 20);
        experiment.add(&size, line.policy, &[(HIT_RATIO, line.hit_ratio)]);
    }
    experiment
}

/// Renders the table of `docs/evidence`.
pub fn render(experiment: &Experiment) -> String {
    let sizes = experiment.points();
    let policies = sizes.first().map_or(Vec::new(), |size| experiment.contenders(size));
    let rows = sizes.iter().map(|size| {
        let ratio = |policy: &&str| experiment.at(size, policy).cell(HIT_RATIO, 3);
        [(*size).to_owned()].into_iter().chain(policies.iter().map(ratio)).collect()
    });
    let titles = format!("hit ratio, cache of | `{}`", policies.join("` | `"));
    table(&titles, rows)
}

fn picture(path: &Path, lines: &[Line]) -> Result<()> {
    let mut policies = Lines::new();
    for line in lines {
        let mib = line.bytes as f64 / f64::from(1 << 20);
        policies.entry(line.policy.to_owned()).or_default().push((mib, line.hit_ratio));
    }
    draw(
        path,
        &Axes { x: "cache, MiB", y: "hit ratio", is_log: true, below: String::new() },
        &policies,
    )
}

fn row(line: &Line) -> Vec<String> {
    let per_access = line.insertions as f64 / line.requests.max(1) as f64;
    let of_vms: Vec<_> = line.vms.iter().map(|vm| format!("{:.3}", vm.hit_ratio)).collect();
    vec![
        line.policy.to_owned(),
        line.bytes.to_string(),
        format!("{:.3}", line.hit_ratio),
        format!("{per_access:.3}"),
        of_vms.join(" / "),
    ]
}

/// Interleaves the blocks of all traces: after any fraction of the whole, the same fraction of each
/// trace has passed.
fn merge(traces: &[Accesses]) -> Vec<BlockId> {
    let timed = (0..).zip(traces).flat_map(|(disk, Accesses { blocks, .. })| {
        let at = |index: usize| (index as f64 + 0.5) / blocks.len() as f64;
        let of_disk =
            move |(index, block): (usize, &u64)| (at(index), BlockId::of_disk(disk, *block));
        blocks.iter().enumerate().map(of_disk)
    });
    let mut timed: Vec<(f64, BlockId)> = timed.collect();
    timed.sort_by(|one, other| one.0.total_cmp(&other.0));
    timed.into_iter().map(|(_, block)| block).collect()
}

/// Accesses a block of a simulated cache.
type Access = Box<dyn FnMut(BlockId) -> Became>;

/// The fate of a block that was accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Became {
    Hit,
    Inserted,
    Refused,
}

fn ours(kind: PolicyKind, capacity: usize, threshold: f64, vms: &Arc<Vms>) -> Access {
    let mut cache = kind.build(capacity, threshold, 0);
    cache.set_vms(vms);
    let mut evicted = Vec::new();
    Box::new(move |block| {
        evicted.clear();
        match cache.access(block, &mut evicted) {
            Outcome::Hit(_) => Became::Hit,
            Outcome::Inserted(_) => Became::Inserted,
            Outcome::Refused => Became::Refused,
        }
    })
}

fn rival(mut cache: impl Rival + 'static) -> Access {
    Box::new(move |block| if cache.hits(block) { Became::Hit } else { Became::Inserted })
}

fn simulate(
    name: &'static str,
    bytes: u64,
    access: &mut Access,
    blocks: &[BlockId],
    unmeasured: &[usize],
) -> Line {
    let mut vms = vec![OfVm::default(); unmeasured.len()];
    let mut unmeasured = unmeasured.to_vec();
    let mut insertions = 0;
    for block in blocks {
        let became = access(*block);
        let vm = block.disk() as usize;
        if unmeasured[vm] > 0 {
            unmeasured[vm] -= 1;
            continue;
        }
        let vm = &mut vms[vm];
        vm.requests += 1;
        match became {
            Became::Hit => vm.hits += 1,
            Became::Inserted => insertions += 1,
            Became::Refused => {}
        }
    }
    let ratio = |hits: u64, requests: u64| hits as f64 / requests.max(1) as f64;
    vms.iter_mut().for_each(|vm| vm.hit_ratio = ratio(vm.hits, vm.requests));
    let requests = vms.iter().map(|vm| vm.requests).sum();
    let hits = vms.iter().map(|vm| vm.hits).sum();
    if vms.len() == 1 {
        vms.clear();
    }
    Line { policy: name, bytes, requests, hit_ratio: ratio(hits, requests), insertions, vms }
}

fn parse_vm(text: &str) -> Result<VmSize, String> {
    let wrong = || format!("{text:?} is not the size of a VM; use vCPUs and memory such as 2x4G");
    let (cpus, memory) = text.split_once('x').ok_or_else(wrong)?;
    let cpus = cpus.parse().map_err(|_| wrong())?;
    let memory = parse_size(memory).map_err(|_| wrong())?;
    if cpus == 0 || memory == 0 { Err(wrong()) } else { Ok(VmSize { cpus, memory }) }
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
    fn traces_are_merged_at_their_own_paces() {
        let merged = merge(&[vec![1, 2, 3, 4], vec![7, 8]].map(Accesses::all));
        let plain: Vec<_> = merged.iter().map(|block| (block.disk(), block.number())).collect();
        assert_eq!(plain, [(0, 1), (1, 7), (0, 2), (0, 3), (1, 8), (0, 4)]);
    }

    #[test]
    fn vms_have_sizes() {
        assert_eq!(parse_vm("2x4G"), Ok(VmSize { cpus: 2, memory: 4 << 30 }));
        for text in ["", "2", "0x1G", "2x0", "x1G", "2x4Q"] {
            assert!(parse_vm(text).is_err(), "{text}");
        }
    }

    #[test]
    fn each_vm_has_its_own_hits() {
        let blocks = merge(&[vec![1, 1, 1, 1], vec![1, 2, 3, 4]].map(Accesses::all));
        let vms = Arc::new(Vms::default());
        let mut access = ours(PolicyKind::Lru, 10, 0.0, &vms);
        let line = simulate("lru", 40960, &mut access, &blocks, &[0, 0]);
        assert_eq!((line.requests, line.hit_ratio, line.insertions), (8, 3.0 / 8.0, 5));
        assert_eq!(line.vms.iter().map(|vm| vm.hits).collect::<Vec<_>>(), [3, 0]);
    }

    #[test]
    fn what_fills_the_cache_first_is_not_counted() {
        let blocks = merge(&[vec![1, 2, 1, 1, 2]].map(Accesses::all));
        let mut access = ours(PolicyKind::Lru, 10, 0.0, &Arc::default());
        let line = simulate("lru", 40960, &mut access, &blocks, &[3]);
        assert_eq!((line.requests, line.hit_ratio, line.insertions), (2, 1.0, 0));
    }

    #[test]
    fn sizes_are_lines_and_policies_columns() {
        let line = |policy, bytes, hit_ratio| Line {
            policy,
            bytes,
            requests: 10,
            hit_ratio,
            insertions: 0,
            vms: Vec::new(),
        };
        let lines = [("lru", 1 << 20, 0.1), ("lru", 1 << 30, 0.2), ("default", 1 << 20, 0.3)]
            .map(|(policy, bytes, ratio)| line(policy, bytes, ratio));
        let text = render(&experiment(&lines));
        assert!(text.contains("| hit ratio, cache of | `lru` | `default` |"), "{text}");
        assert!(text.ends_with("| 1 MiB | 0.100 | 0.300 |\n| 1024 MiB | 0.200 | - |\n"), "{text}");
    }
}
