//! A real file, the default shape for its size, and a disk that is full to its last block: three
//! queues overwrite and trim it at random, faster than the cleaner can follow. No request is ever
//! refused.
//!
//! A record that only trimmed opened one of the last segments, writes filled it, and the next trim
//! opened another one, until the cleaner had no room: permanently out of space on a disk that was
//! not full.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;
use flowstone_block::{BlockingDisk, Errno, Extent, Layer, Op, Sector, SectorCount};
use flowstone_fileio::{Access, OpenOptions, create_sparse};
use flowstone_image::DiscardMode;

use super::fixture::BLOCK_SECTORS;
use crate::{LogImage, LogOptions, create};

/// Duration of the load, and its share of trims.
struct Load {
    bytes: u64,
    segment_bytes: Option<u64>,
    seed: u64,
    operations: AtomicU64,
    end: Option<Instant>,
    trim_percent: AtomicU64,
}

impl Load {
    fn goes_on(&self) -> bool {
        match self.end {
            Some(end) => Instant::now() < end,
            None => self.operations.load(Ordering::Relaxed) > 0,
        }
    }

    /// Runs the load; returns the number of operations done.
    fn run(&self) -> u64 {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("full.flow");
        create_sparse(&path, 0).unwrap();
        let file = OpenOptions::new(Access::Write).open(&path).unwrap();
        let options = LogOptions { segment_bytes: self.segment_bytes, ..LogOptions::default() };
        let capacity = SectorCount::from_bytes(self.bytes).unwrap();
        create("full", &file, capacity, options).unwrap();
        let discard = DiscardMode::Deallocate;
        let file = Box::new(file);
        let image = LogImage::open(&path, file, discard, Access::Write, None, None).unwrap();
        let image: &dyn Layer = &image;
        self.fill(image);
        std::thread::scope(|scope| {
            let queues = [1, 2, 3].map(|me| scope.spawn(move || self.queue(image, me)));
            queues.into_iter().map(|queue| queue.join().unwrap()).sum()
        })
    }

    fn fill(&self, image: &dyn Layer) {
        let mut queue = BlockingDisk::new(image).unwrap();
        let mut bytes = vec![7; 1 << 20];
        for start in (0..self.bytes).step_by(bytes.len()) {
            queue.write(Sector::new(start / 512), &mut bytes).unwrap();
        }
        queue.run(Op::Flush).unwrap();
    }

    fn queue(&self, image: &dyn Layer, me: u64) -> u64 {
        let mut queue = BlockingDisk::new(image).unwrap();
        let mut random = Rng::with_seed(self.seed ^ me << 32);
        let mut bytes = vec![me as u8; 4096];
        let mut done = 0;
        while self.goes_on() {
            let first = random.u64(..self.bytes / 4096) * BLOCK_SECTORS;
            let trims = random.u64(..100) < self.trim_percent.load(Ordering::Relaxed);
            let outcome: Result<(), Errno> = if trims {
                let block = Extent::new(Sector::new(first), SectorCount::new(BLOCK_SECTORS));
                queue.run(Op::Discard(block.unwrap()))
            } else {
                queue.write(Sector::new(first), &mut bytes)
            };
            if let Err(errno) = outcome {
                panic!(
                    "seed {}: queue {me} was refused after {done}, trims {trims}: {errno}",
                    self.seed
                );
            }
            done += 1;
            if self.end.is_none() {
                let less = |left: u64| Some(left.saturating_sub(1));
                let _ = self.operations.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
            }
        }
        done
    }
}

#[test]
fn writes_and_trims_of_a_full_disk_are_never_refused() {
    for (seed, trim_percent) in [(1, 8), (2, 15), (3, 3)] {
        let load = Load {
            bytes: 8 << 20,
            segment_bytes: Some(256 << 10),
            seed,
            operations: AtomicU64::new(3000),
            end: None,
            trim_percent: AtomicU64::new(trim_percent),
        };
        load.run();
    }
}

/// `SOAK_MIB` sets the size of the disk.
#[test]
#[ignore = "runs for SOAK_MINUTES: make soak"]
fn soak_trims_of_a_full_disk() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let mib = number("SOAK_MIB").unwrap_or(64);
    let seed = number("SOAK_SEED").unwrap_or_else(|| fastrand::u64(..1 << 32));
    let minutes = number("SOAK_MINUTES").unwrap_or(10);
    let end = Instant::now() + Duration::from_secs(60 * minutes);
    eprintln!("SOAK_SEED={seed} SOAK_MIB={mib}");
    let load = Load {
        bytes: mib << 20,
        segment_bytes: None,
        seed,
        operations: AtomicU64::new(0),
        end: Some(end),
        trim_percent: AtomicU64::new(8),
    };
    let done = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Rng::with_seed(seed);
            while load.goes_on() {
                load.trim_percent.store(random.u64(1..=15), Ordering::Relaxed);
                let left = end.saturating_duration_since(Instant::now());
                std::thread::sleep(left.min(Duration::from_secs(10)));
            }
        });
        load.run()
    });
    eprintln!("SOAK_SEED={seed} SOAK_MIB={mib}: {done} writes and trims, none refused");
}
