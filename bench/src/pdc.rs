//! `flowstone-bench pdc`: the benefit of keeping journals out of caches (PDC, S4).
//!
//! A guest's file system keeps committing and re-reading, and memory has room for a tenth of its
//! data: our cache, or the host's page cache in a memory cgroup. The disk holds a real ext4, so
//! that the journal is recognised; its blocks are written as by jbd2, the rest of the load is drawn
//! by Zipf's law.

use flowstone_block::parse_size;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use flowstone_experiment::{Experiment, Figures, table};
use flowstone_testkit::process::pin_current_thread;
use flowstone_testkit::truth::{Holds, Truth, run};
use flowstone_testkit::{Client, ClientOptions, Daemon, Status};

use crate::idle::figure_of;
use crate::memory_group::MemoryGroup;
use crate::place::{Place, remove, serve, stats, stop_peer};
use crate::raw_file::drop_pages;
use crate::run::Run;

/// Options.
#[derive(Clone, Debug, Args)]
pub struct PdcArgs {
    /// Reads of a measurement; half as many before it warm up the cache.
    #[arg(long, default_value_t = 40_000)]
    reads: usize,
    /// Size of the data.
    #[arg(long, default_value = "512M", value_parser = parse_size)]
    size: u64,
    #[command(flatten)]
    run: Run,
    #[command(flatten)]
    place: Place,
}

/// Reads of each transaction, from a mail server to a web server: syncs cost most, or reads do.
const MIXES: [usize; 4] = [2, 8, 32, 128];
const BLOCK: usize = 4096;
const SECTORS: u64 = BLOCK as u64 / 512;
/// A descriptor and two blocks of metadata, followed by a commit block.
const BODY_BLOCKS: usize = 3;
/// Divisor of the data: memory has room for this part.
const CACHED_OF: u64 = 10;
/// Memory of the daemon itself in its cgroup.
const DAEMON_BYTES: u64 = 24 << 20;
/// Time to wait until the layout has been read.
const LAYOUT: Duration = Duration::from_millis(1500);
/// Values of `--pdc`.
const CHOICES: [&str; 2] = ["on", "off"];
const TRANSACTIONS: &str = "transactions_per_s";
/// Blocks read from the disk by the daemon, per read of the guest.
const FETCHED: &str = "fetched_per_read";

/// The cache that is measured.
#[derive(Clone, Copy, Debug)]
enum Memory {
    Ours(&'static str),
    PageCache,
}

const MEMORIES: [(&str, Memory); 3] = [
    ("our cache, `default`", Memory::Ours("default")),
    ("our cache, `multicache`", Memory::Ours("multicache")),
    ("page cache in a cgroup", Memory::PageCache),
];

/// The disk.
struct Image {
    path: PathBuf,
    /// Block numbers.
    journal: Vec<u64>,
    data: Vec<u64>,
}

/// Carries out the subcommand.
pub fn pdc(args: &PdcArgs) -> Result<()> {
    let mut experiment = args.run.experiment(&format!("pdc {} {}", args.size, args.reads))?;
    let flowstone = args.place.program()?;
    pin_current_thread(&[args.place.client_cpu])?;
    let image = Image::make(args)?;
    let points: Vec<_> = MEMORIES
        .iter()
        .flat_map(|(name, memory)| MIXES.map(|mix| (point(name, mix), (*memory, mix))))
        .collect();
    let choices = CHOICES.map(|pdc| (pdc, pdc));
    experiment.run(args.run.rounds, &points, &choices, |(memory, mix), pdc| {
        measure(args, &flowstone, &image, *memory, *mix, pdc)
    })?;
    args.run.publish(render, &experiment)?;
    remove(&image.path)
}

fn point(memory: &str, mix: usize) -> String {
    format!("{memory}, {mix} reads")
}

/// Renders the table.
pub fn render(experiment: &Experiment) -> String {
    let rows = experiment.points().into_iter().map(|point| {
        let [with, without] = CHOICES.map(|pdc| experiment.at(point, pdc));
        vec![
            point.to_owned(),
            with.cell(TRANSACTIONS, 0),
            without.cell(TRANSACTIONS, 0),
            with.ratio(without, TRANSACTIONS),
            with.cell(FETCHED, 3),
            without.cell(FETCHED, 3),
        ]
    });
    let titles = "memory for a tenth of the data, reads of a transaction | transactions/s, PDC | without | ratio | \
                  blocks fetched per read, PDC | without";
    table(titles, rows)
}

impl Image {
    /// Makes an image, written in full: no read hits a hole.
    fn make(args: &PdcArgs) -> Result<Self> {
        let path = args.run.dir.join("pdc.raw");
        let journal_bytes = args.size / 4;
        std::fs::write(&path, vec![0x5a; usize::try_from(args.size + args.size / 2)?])?;
        let text = path.to_str().context("the directory's name is no text")?;
        let journal = format!("size={}", journal_bytes >> 20);
        run("mkfs.ext4", &["-q", "-F", "-b", "4096", "-E", "nodiscard", "-J", &journal, text], "");
        let truth = Truth::of_ext4(text);
        let blocks = 0..truth.bytes / BLOCK as u64;
        let (mut journal, mut data) = (Vec::new(), Vec::new());
        for block in blocks {
            match truth.at(block * BLOCK as u64) {
                Some(Holds::Journal) => journal.push(block),
                None => data.push(block),
                Some(_) => {}
            }
        }
        data.truncate(usize::try_from(args.size)? / BLOCK);
        ensure!(data.len() as u64 == args.size / BLOCK as u64, "the data does not fit");
        Ok(Self { path, journal, data })
    }
}

/// Measures; without figures, and with a message, if that is not possible here.
fn measure(
    args: &PdcArgs,
    flowstone: &Path,
    image: &Image,
    memory: Memory,
    mix: usize,
    pdc: &str,
) -> Result<Figures> {
    let [socket, control] = ["pdc.sock", "pdc.control"].map(|name| args.run.dir.join(name));
    let room = args.size / CACHED_OF;
    let size = room.to_string();
    let (options, group) = match memory {
        Memory::Ours(policy) => (vec!["--cache", &size, "--cache-policy", policy], None),
        Memory::PageCache => match MemoryGroup::new(room + DAEMON_BYTES) {
            Some(group) => (vec!["--direct", "off"], Some(group)),
            None => return Ok(Vec::new()),
        },
    };
    drop_pages(&image.path)?;
    let command = serve(flowstone, &socket).args(["--pdc", pdc, "--control"]).arg(&control);
    let mut daemon = args.place.start(command.args(options).arg(&image.path), &socket)?;
    if let Some(group) = &group {
        group.add(daemon.pid())?;
    }
    std::thread::sleep(LAYOUT);
    let mut load = Load::new(mix, image, Client::connect(ClientOptions::new(&socket))?);
    let transactions = args.reads / mix;
    (0..transactions / 2).try_for_each(|_| load.transact())?;
    let (begin, before) = (Instant::now(), fetched_bytes(&daemon)?);
    (0..transactions).try_for_each(|_| load.transact())?;
    let seconds = begin.elapsed().as_secs_f64();
    let fetched = (fetched_bytes(&daemon)? - before) / BLOCK as f64;
    let stats = stats(flowstone, &control)?;
    let known = stats["disks"][0]["classes"]["journal"]["writes"].as_u64();
    ensure!(known.is_some_and(|writes| writes > 0), "the journal was not recognised");
    drop(load);
    stop_peer(&mut daemon)?;
    Ok(vec![
        (TRANSACTIONS, transactions as f64 / seconds),
        (FETCHED, fetched / (transactions * mix) as f64),
    ])
}

/// Returns the bytes that the process has read from the host's disks.
fn fetched_bytes(daemon: &Daemon) -> Result<f64> {
    figure_of(daemon.pid(), "io", "read_bytes:")
}

/// The load of the guest.
struct Load<'a> {
    /// Reads of a transaction.
    mix: usize,
    image: &'a Image,
    client: Client,
    random: fastrand::Rng,
    /// The next block of the journal.
    head: usize,
    buffer: Vec<u8>,
}

impl<'a> Load<'a> {
    fn new(mix: usize, image: &'a Image, client: Client) -> Self {
        let random = fastrand::Rng::with_seed(1);
        Self { mix, image, client, random, head: 1, buffer: vec![0x77; BLOCK] }
    }

    /// Draws a block: some are read much more often than others, and hot ones are scattered.
    fn draw(&mut self) -> u64 {
        let count = self.image.data.len() as f64;
        // Zipf's law with an exponent close to 1: the rank's logarithm is uniform.
        let rank = count.powf(self.random.f64()) as usize - 1;
        let at = rank.wrapping_mul(2_654_435_761) % self.image.data.len();
        self.image.data[at]
    }

    fn transact(&mut self) -> Result<()> {
        for _ in 0..self.mix {
            let block = self.draw();
            let status = self.client.read(block * SECTORS, &mut self.buffer)?;
            ensure!(status == Status::Ok, "a read failed: {status:?}");
        }
        let block = self.draw();
        self.write(block)?;
        for _ in 0..BODY_BLOCKS {
            self.write_journal()?;
        }
        ensure!(self.client.flush()? == Status::Ok, "a flush failed");
        self.write_journal()?;
        ensure!(self.client.flush()? == Status::Ok, "a flush failed");
        Ok(())
    }

    /// Writes the next block of the journal, whose first block is its superblock.
    fn write_journal(&mut self) -> Result<()> {
        let block = self.image.journal[self.head];
        self.head = if self.head + 1 == self.image.journal.len() { 1 } else { self.head + 1 };
        self.write(block)
    }

    fn write(&mut self, block: u64) -> Result<()> {
        let status = self.client.write(block * SECTORS, &self.buffer)?;
        ensure!(status == Status::Ok, "a write failed: {status:?}");
        Ok(())
    }
}
