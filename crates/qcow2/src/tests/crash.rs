//! Power is cut at every moment of short runs. The content found must include all durable changes,
//! and the tables must be consistent except for refcounts that are too high.

use std::collections::HashMap;

use fastrand::Rng;
use flowstone_block::{Extent, Layer, Op, SectorCount};
use flowstone_image::Image;
use flowstone_sim::{Fate, Moment, Schedule, SimDisk};

use super::super::Qcow2Image;
use super::fixture::{
    Guest, assert_clean, checked, contents, extent, new_disk, new_overlay, open_on,
    open_read_only_on, raw,
};
use super::history_model::{HistoryModel, Open, stamped, stamps_of};

/// Parameters of a run and its image.
#[derive(Clone, Copy, Debug)]
struct Setup {
    seed: u64,
    cluster_bytes: u64,
    sectors: u64,
    requests: u32,
    depth: usize,
    flush_percent: u32,
    /// The image has a raw backing file, part of which is data.
    based: bool,
    /// `compact` runs before the image is closed.
    compacts: bool,
}

impl Setup {
    fn new(seed: u64, cluster_bytes: u64) -> Self {
        // Small clusters: several tables, and more than one refcount block.
        let clusters = if cluster_bytes == 512 { 330 } else { 24 };
        let sectors = clusters * cluster_bytes / 512;
        Self {
            seed,
            cluster_bytes,
            sectors,
            requests: 60,
            depth: 6,
            flush_percent: 12,
            based: false,
            compacts: seed.is_multiple_of(2),
        }
    }

    fn base(&self) -> Option<SimDisk> {
        // Shorter than the disk, and does not end at a cluster boundary.
        let sectors = self.sectors * 3 / 4 + 1;
        let disk = SimDisk::from_bytes(&stamped(0, sectors, 1));
        disk.write_at(40 * 512, &[0; 20 * 512]);
        self.based.then_some(disk)
    }

    fn new_disk(&self) -> SimDisk {
        let new = if self.based { new_overlay } else { new_disk };
        new(self.sectors, self.cluster_bytes)
    }

    fn open(&self, disk: &SimDisk) -> Qcow2Image {
        open_on(disk, self.base().as_ref().map(raw))
    }

    fn read(&self, disk: &SimDisk) -> Vec<u32> {
        let image = open_read_only_on(disk, self.base().as_ref().map(raw)).unwrap();
        stamps_of(&contents(&image))
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

/// A run of requests, several in flight, of which no two overlap.
struct CrashRun<'a> {
    setup: Setup,
    disk: &'a SimDisk,
    guest: Guest,
    model: HistoryModel,
    open: HashMap<u32, (Open, Option<Extent>)>,
    random: Rng,
    stamp: u32,
}

impl CrashRun<'_> {
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
        let open = self.model.submit(self.disk, op, stamp, durable);
        let tag = self.guest.submit_data(op, &data, durable);
        self.open.insert(tag, (open, op.extent()));
    }

    fn collect_one(&mut self) {
        let completion = self.guest.next();
        completion.outcome.unwrap();
        let (open, _) = self.open.remove(&completion.request.tag).unwrap();
        self.model.complete(self.disk, &open);
    }
}

/// Runs a setup on a disk with an image; returns the history. The image is closed.
fn run_on(setup: Setup, disk: &SimDisk, seed: u64) -> HistoryModel {
    disk.set_schedule(Schedule::Shuffled { seed });
    let before = setup.read(disk);
    let stamp = before.iter().copied().max().unwrap_or(0);
    let image = setup.open(disk);
    assert_eq!(image.geometry().capacity.get(), setup.sectors);
    let guest = Guest::new(&image);
    let model = HistoryModel::new(&before, disk);
    let random = Rng::with_seed(seed);
    let mut run = CrashRun { setup, disk, guest, model, open: HashMap::new(), random, stamp };
    run.go();
    let CrashRun { guest, model, .. } = run;
    drop(guest);
    if setup.compacts {
        image.compact(&mut |_, _| {}).unwrap();
    }
    assert_eq!(stamps_of(&contents(&image)), model.latest());
    drop(image);
    assert_clean(disk);
    assert_eq!(setup.read(disk), model.latest(), "after it was closed");
    model
}

/// Checks the state after a crash, and that the image remains usable.
fn recover(setup: Setup, crashed: &SimDisk, model: &HistoryModel, moment: Moment, go_on: bool) {
    let found = setup.read(crashed);
    model.judge(&found, moment);
    let report = checked(crashed, false);
    assert_eq!(report.errors, Vec::<String>::new());
    if go_on {
        let setup = Setup { requests: 20, ..setup };
        let second = SimDisk::from_bytes(&crashed.to_bytes());
        let image = setup.open(&second);
        assert_eq!(stamps_of(&contents(&image)), found);
        drop(image);
        checked(&second, true);
        assert_clean(&second);
        run_on(setup, &second, setup.seed + 1);
    }
}

fn crash_everywhere(setup: Setup, has_past: bool) {
    let mut disk = setup.new_disk();
    if has_past {
        // So that there are free clusters in the middle of the file.
        run_on(setup, &disk, setup.seed ^ 0x55);
    }
    disk = SimDisk::from_bytes(&disk.to_bytes());
    let model = run_on(setup, &disk, setup.seed);
    for (index, moment) in disk.crash_points().enumerate() {
        let fate = match index % 3 {
            0 => Fate::nothing_more(),
            1 => Fate::everything(),
            _ => Fate::seeded(setup.seed * 1000 + index as u64),
        };
        let _tell = Tell(format!("{setup:?}, {fate:?} at {moment:?}"));
        let crashed = disk.crash_at(moment, &mut fate.clone());
        recover(setup, &crashed, &model, moment, index % 29 == 0);
        let seed = setup.seed * 2000 + index as u64;
        let crashed = disk.crash_at(moment, &mut Fate::seeded(seed));
        recover(setup, &crashed, &model, moment, false);
    }
}

/// Prints the test's position when it fails.
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
    for seed in 0..2 {
        crash_everywhere(Setup::new(seed, 512), seed % 2 == 1);
    }
}

#[test]
fn larger_clusters_survive_every_power_cut() {
    for seed in 10..12 {
        crash_everywhere(Setup::new(seed, 4096), true);
    }
}

#[test]
fn images_with_a_backing_file_survive_every_power_cut() {
    for seed in 20..22 {
        let cluster_bytes = if seed % 2 == 0 { 4096 } else { 512 };
        let setup = Setup { based: true, ..Setup::new(seed, cluster_bytes) };
        crash_everywhere(setup, seed % 2 == 1);
    }
}

#[test]
fn growing_survives_every_power_cut() {
    const BEFORE: u64 = 330;
    const AFTER: u64 = 5000;
    let disk = new_disk(BEFORE, 512);
    let image = open_on(&disk, None);
    let mut guest = Guest::new(&image);
    guest.submit_data(Op::Write(extent(0, BEFORE)), &stamped(0, BEFORE, 1), false);
    guest.next().outcome.unwrap();
    drop((guest, image));
    let disk = SimDisk::from_bytes(&disk.to_bytes());
    let image = open_on(&disk, None);
    // The L1 table must move for that.
    image.resize(SectorCount::new(AFTER)).unwrap();
    let mut guest = Guest::new(&image);
    guest.submit_data(Op::Write(extent(AFTER - 9, 9)), &stamped(AFTER - 9, 9, 2), false);
    guest.next().outcome.unwrap();
    guest.run(Op::Flush, 0).unwrap();
    let flushed = disk.now();
    drop((guest, image));
    assert_clean(&disk);
    for (index, moment) in disk.crash_points().enumerate() {
        for seed in 0..4 {
            let _tell = Tell(format!("seed {seed} at {moment:?}"));
            let crashed = disk.crash_at(moment, &mut Fate::seeded(index as u64 * 4 + seed));
            let image = open_read_only_on(&crashed, None).unwrap();
            let found = stamps_of(&contents(&image));
            assert!(found.len() == AFTER as usize || found.len() == BEFORE as usize);
            assert!(found[..BEFORE as usize].iter().all(|stamp| *stamp == 1));
            assert!(found[BEFORE as usize..].iter().all(|stamp| matches!(stamp, 0 | 2)));
            if moment >= flushed {
                assert_eq!(found.last(), Some(&2));
            }
            assert_eq!(checked(&crashed, false).errors, Vec::<String>::new());
        }
    }
}

#[test]
#[ignore = "runs for SOAK_MINUTES: make soak"]
fn soak_crashes_of_qcow2() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let minutes = number("SOAK_MINUTES").unwrap_or(10);
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60 * minutes);
    let mut seed = number("SOAK_SEED").unwrap_or_else(|| fastrand::u64(..1 << 32));
    eprintln!("SOAK_SEED={seed}");
    while std::time::Instant::now() < end {
        let mut random = Rng::with_seed(seed);
        let cluster_bytes = *random.choice([&512, &1024, &4096]).unwrap();
        let setup = Setup {
            based: random.bool(),
            requests: random.u32(20..150),
            depth: random.usize(1..10),
            flush_percent: random.u32(3..40),
            ..Setup::new(seed, cluster_bytes)
        };
        eprintln!("{setup:?}");
        crash_everywhere(setup, random.bool());
        seed += 1;
    }
}
