//! Power is cut at every moment of short runs. What is found must be what the guest was promised,
//! and tables that are in order: too high refcounts are all that may be wrong with them.

use std::collections::HashMap;

use fastrand::Rng;
use flowstone_block::{Extent, Layer, Op};
use flowstone_fileio::sim::{Fate, Moment, Schedule, SimDisk};

use super::rig::{Guest, assert_clean, checked, contents, extent, new_disk, open, open_read_only};
use super::story::{Open, Story, stamped, stamps_of};

/// What is run, and on what.
#[derive(Clone, Copy, Debug)]
struct Setup {
    seed: u64,
    cluster_bytes: u64,
    sectors: u64,
    requests: u32,
    depth: usize,
    flush_percent: u32,
}

impl Setup {
    fn new(seed: u64, cluster_bytes: u64) -> Self {
        // Small clusters: several tables, and more than one refcount block.
        let clusters = if cluster_bytes == 512 { 330 } else { 24 };
        let sectors = clusters * cluster_bytes / 512;
        Self { seed, cluster_bytes, sectors, requests: 60, depth: 6, flush_percent: 12 }
    }

    fn any_op(&self, random: &mut Rng) -> Op {
        let cluster_sectors = self.cluster_bytes / 512;
        let longest = if random.u8(..3) == 0 { 3 * cluster_sectors } else { cluster_sectors };
        let start = random.u64(..self.sectors);
        let count = random.u64(1..=longest.max(2)).min(self.sectors - start);
        let mut place = extent(start, count);
        if random.bool() {
            let first = start / cluster_sectors * cluster_sectors;
            place = extent(first, cluster_sectors.min(self.sectors - first));
        }
        match random.u32(..100) {
            percent if percent < self.flush_percent => Op::Flush,
            percent if percent < self.flush_percent + 20 => Op::Discard(place),
            percent if percent < self.flush_percent + 30 => {
                Op::WriteZeroes { extent: place, unmap: random.bool() }
            }
            _ => Op::Write(place),
        }
    }
}

/// A run of requests, several at a time, of which no two overlap.
struct Run<'a> {
    setup: Setup,
    disk: &'a SimDisk,
    guest: Guest,
    story: Story,
    open: HashMap<u32, (Open, Option<Extent>)>,
    random: Rng,
    stamp: u32,
}

impl Run<'_> {
    fn go(&mut self) {
        for _ in 0..self.setup.requests {
            while self.open.len() >= self.setup.depth {
                self.collect_one();
            }
            let op = self.setup.any_op(&mut self.random);
            let overlaps = |other: &Option<Extent>| match (op.extent(), other) {
                (Some(one), Some(other)) => one.overlaps(*other),
                _ => false,
            };
            while self.open.values().any(|(_, extent)| overlaps(extent)) {
                self.collect_one();
            }
            self.submit(op);
        }
        while !self.open.is_empty() {
            self.collect_one();
        }
    }

    fn submit(&mut self, op: Op) {
        self.stamp += 1;
        let (stamp, data) = match op {
            Op::Write(extent) => {
                let data = stamped(extent.start().get(), extent.count().get(), self.stamp);
                (self.stamp, data)
            }
            _ => (0, Vec::new()),
        };
        let durable = op.modifies() && self.random.u8(..12) == 0;
        let open = self.story.submit(self.disk, op, stamp, durable);
        let tag = self.guest.submit_data(op, &data, durable);
        self.open.insert(tag, (open, op.extent()));
    }

    fn collect_one(&mut self) {
        let completion = self.guest.next();
        completion.outcome.unwrap();
        let (open, _) = self.open.remove(&completion.request.tag).unwrap();
        self.story.complete(self.disk, &open);
    }
}

/// Runs a setup on a disk with an image; returns what happened. The image is closed.
fn run_on(setup: Setup, disk: &SimDisk, seed: u64) -> Story {
    disk.set_schedule(Schedule::Shuffled { seed });
    let before = stamps_of(&contents(&open_read_only(disk).unwrap()));
    let stamp = before.iter().copied().max().unwrap_or(0);
    let image = open(disk);
    assert_eq!(image.geometry().capacity.get(), setup.sectors);
    let guest = Guest::new(&image);
    let story = Story::new(&before, disk);
    let random = Rng::with_seed(seed);
    let mut run = Run { setup, disk, guest, story, open: HashMap::new(), random, stamp };
    run.go();
    let Run { guest, story, .. } = run;
    drop(guest);
    assert_eq!(stamps_of(&contents(&image)), story.latest());
    drop(image);
    assert_clean(disk);
    let image = open_read_only(disk).unwrap();
    assert_eq!(stamps_of(&contents(&image)), story.latest(), "after it was closed");
    story
}

/// What is found after a crash must be right, and must be right to go on with.
fn recover(setup: Setup, crashed: &SimDisk, story: &Story, moment: Moment, go_on: bool) {
    let found = stamps_of(&contents(&open_read_only(crashed).unwrap()));
    story.judge(&found, moment);
    let report = checked(crashed, false);
    assert_eq!(report.errors, Vec::<String>::new());
    if go_on {
        let setup = Setup { requests: 20, ..setup };
        let second = SimDisk::from_bytes(&crashed.to_bytes());
        let image = open(&second);
        assert_eq!(stamps_of(&contents(&image)), found);
        drop(image);
        checked(&second, true);
        assert_clean(&second);
        run_on(setup, &second, setup.seed + 1);
    }
}

fn crash_everywhere(setup: Setup, has_past: bool) {
    let mut disk = new_disk(setup.sectors, setup.cluster_bytes);
    if has_past {
        // There are free clusters in the middle of it.
        run_on(setup, &disk, setup.seed ^ 0x55);
    }
    disk = SimDisk::from_bytes(&disk.to_bytes());
    let story = run_on(setup, &disk, setup.seed);
    for (index, moment) in disk.crash_points().enumerate() {
        let fate = match index % 3 {
            0 => Fate::nothing_more(),
            1 => Fate::everything(),
            _ => Fate::seeded(setup.seed * 1000 + index as u64),
        };
        let _tell = Tell(format!("{setup:?}, {fate:?} at {moment:?}"));
        let crashed = disk.crash_at(moment, &mut fate.clone());
        recover(setup, &crashed, &story, moment, index % 29 == 0);
        let seed = setup.seed * 2000 + index as u64;
        let crashed = disk.crash_at(moment, &mut Fate::seeded(seed));
        recover(setup, &crashed, &story, moment, false);
    }
}

/// Says where a test was when it failed.
struct Tell(String);

impl Drop for Tell {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed: {}", self.0);
        }
    }
}

#[test]
fn small_clusters_survive_every_power_cut() {
    for seed in 0..4 {
        crash_everywhere(Setup::new(seed, 512), seed % 2 == 1);
    }
}

#[test]
fn larger_clusters_survive_every_power_cut() {
    for seed in 10..13 {
        crash_everywhere(Setup::new(seed, 4096), true);
    }
}
