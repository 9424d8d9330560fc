//! Compares the page cache over the source alone with a file cache of the same total memory: its
//! copies, its process, and the page cache of files without a copy.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use flowstone_experiment::{Experiment, table};
use flowstone_policy::simulator::Line;
use flowstone_testkit::fuse::{Call, FuseHost};

use super::{Mounted, Places};
use crate::filecache::Load;
use crate::memory_group::MemoryGroup;

/// Memory of a file cache besides copies: its process, and cached pages of other files.
const BESIDE_COPIES: u64 = 48 << 20;

/// Uses of files, 4 KiB to 1 MiB each, with the frequencies of Zipf's law (exponent 0.9); three in
/// ten uses are of files that are used once.
const USES: usize = 60_000;
/// Memory in percent of the bytes of all files.
const PERCENT: u64 = 5;
const POINT: &str = "all seeds";
const MEMORY: &str = "memory_mib";
const GIB: &str = "from_source_gib";
const NAMES: [&str; 3] = ["read", "alone", "cached"];

/// Measures one seed in each round.
pub fn same_memory(program: &Path, rounds: usize, experiment: &mut Experiment) -> Result<()> {
    let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
    let contenders = NAMES.into_iter().zip([None, None, Some(program)]);
    for seed in 1..=rounds as u64 {
        let lines = Load::Scan.lines(seed);
        let uses = &lines[..USES.min(lines.len())];
        let files: BTreeMap<_, _> = uses.iter().map(|it| (it.file.0, it.bytes)).collect();
        let limit = files.values().sum::<u64>() / 100 * PERCENT;
        for (name, cache) in contenders.clone() {
            let bytes = match name {
                "read" => uses.iter().map(|it| it.bytes).sum(),
                _ => bytes_from_source(uses, &files, limit, cache)?,
            };
            experiment.add(POINT, name, &[(GIB, gib(bytes)), (MEMORY, (limit >> 20) as f64)]);
        }
    }
    Ok(())
}

/// Renders the table.
pub fn render(experiment: &Experiment) -> String {
    let [read, alone, cached] = NAMES.map(|name| experiment.at(POINT, name));
    let row = vec![
        read.all(GIB).len().to_string(),
        read.cell(MEMORY, 0),
        read.cell(GIB, 2),
        alone.cell(GIB, 2),
        cached.cell(GIB, 2),
        cached.ratio(alone, GIB),
    ];
    let titles = "seeds | memory, MiB | read, GiB | from the source alone, GiB | with the file \
                  cache, GiB | ratio";
    table(titles, [row])
}

/// Reads all files in turn, whole, in processes that have `limit` bytes of memory together. Returns
/// the bytes read from the source.
fn bytes_from_source(
    uses: &[Line],
    files: &BTreeMap<u64, u64>,
    limit: u64,
    cache: Option<&Path>,
) -> Result<u64> {
    let places = Places::new(&["behind", "source", "mount"])?;
    let (source, mount) = (places.at("source"), places.at("mount"));
    for (file, bytes) in files {
        File::create(places.at("behind").join(file.to_string()))?.set_len(*bytes)?;
    }
    let host = FuseHost::mount(&source, &places.at("behind")).context("mount a source")?;
    let group = MemoryGroup::new(limit).context("this needs a memory cgroup")?;
    let launcher = group.launcher();
    let launcher: Vec<_> = launcher.iter().map(String::as_str).collect();
    let mounted = match cache {
        Some(program) => {
            let copies = (limit - BESIDE_COPIES).to_string();
            let options = ["--policy", "default", "--memory", &copies];
            Some(Mounted::start(program, &launcher, &source, &mount, &options)?)
        }
        None => None,
    };
    let list: Vec<_> = uses.iter().map(|it| it.file.0.to_string()).collect();
    fs::write(places.at("list"), list.join("\n"))?;
    let mut reader = Command::new(launcher[0]);
    reader.args(&launcher[1..]).args(["xargs", "-a"]).arg(places.at("list")).arg("cat");
    reader.current_dir(if mounted.is_some() { &mount } else { &source });
    let done = reader.stdout(std::process::Stdio::null()).status()?;
    ensure!(done.success(), "the reader ended with {done}");
    let bytes = host.count(Call::Read).bytes;
    if let Some(mounted) = mounted {
        eprintln!("{}", mounted.stats()?);
        mounted.end()?;
    }
    Ok(bytes)
}
