//! Queues and the maintenance worker on threads of their own, with power cut at moments of that
//! run: the other crash tests do everything on one thread.

use std::path::Path;
use std::sync::atomic::Ordering;

use fastrand::Rng;
use flowstone_block::{BlockingDisk, Extent, Op, Sector, SectorCount};
use flowstone_fileio::Access;
use flowstone_image::DiscardMode;
use flowstone_sim::{Fate, Moment, Schedule, SimDisk};

use super::crash::{CRASHES, Tell};
use super::fixture::{Setup, contents_read_only};
use super::history_model::{Stamp, read_stamps, stamp};
use crate::disk::LogImage;

/// Number of guests, each of which owns every third unit of four sectors.
const GUESTS: u64 = 3;
const UNIT: u64 = 4;

#[derive(Clone, Copy)]
struct Change {
    stamp: Stamp,
    begun: Moment,
    ended: Option<Moment>,
}

/// History of a guest: the changes of each sector in order, and its flushes.
struct Told {
    changes: Vec<Vec<Change>>,
    flushes: Vec<(Moment, Moment)>,
}

fn open(disk: &SimDisk) -> LogImage {
    let file = Box::new(disk.clone());
    LogImage::open(Path::new("image"), file, DiscardMode::Deallocate, Access::Write, None, None)
        .unwrap()
}

fn guest(image: &LogImage, disk: &SimDisk, me: u64, sectors: u64, rounds: u64, seed: u64) -> Told {
    let mut queue = BlockingDisk::new(image).unwrap();
    let mut random = Rng::with_seed(seed * GUESTS + me);
    let mut told = Told { changes: vec![Vec::new(); sectors as usize], flushes: Vec::new() };
    for round in 0..rounds {
        let unit = random.u64(..sectors / UNIT / GUESTS) * GUESTS + me;
        let from = unit * UNIT + random.u64(..2);
        let count = (unit + 1) * UNIT - from;
        let mut bytes = vec![0; count as usize * 512];
        let begun = disk.now();
        let zeroes = random.u8(..6) == 0;
        // Distinguished from unwritten sectors by being last: no two writes have the same number.
        let number = if zeroes { 0 } else { 1 + me * 1_000_000 + round };
        if zeroes {
            let extent = Extent::new(Sector::new(from), SectorCount::new(count)).unwrap();
            let op = match random.bool() {
                true => Op::Discard(extent),
                false => Op::WriteZeroes { extent, unmap: true },
            };
            queue.run(op).unwrap();
        } else {
            stamp(&mut bytes, from, number);
            queue.write(Sector::new(from), &mut bytes).unwrap();
        }
        let ended = Some(disk.now());
        for sector in from..from + count {
            told.changes[sector as usize].push(Change { stamp: number, begun, ended });
        }
        if random.u8(..10) == 0 {
            let begun = disk.now();
            queue.run(Op::Flush).unwrap();
            told.flushes.push((begun, disk.now()));
        }
        if random.u8(..4) == 0 {
            queue.read(Sector::new(from), &mut bytes).unwrap();
            assert_eq!(read_stamps(&bytes, from).unwrap(), vec![number; count as usize]);
        }
    }
    told
}

/// Checks that each sector holds one of its changes since the last flush, or the one it had then.
fn judge(seen: &[Stamp], told: &Told, moment: Moment) {
    let served = told.flushes.iter().filter(|(_, done)| *done < moment);
    let served = served.map(|(begun, _)| *begun).max();
    for (sector, (seen, changes)) in seen.iter().zip(&told.changes).enumerate() {
        let is_safe =
            |it: &Change| served.is_some_and(|flush| it.ended.is_some_and(|ended| ended < flush));
        let safe = changes.iter().rposition(is_safe);
        let later = changes[safe.unwrap_or(0)..].iter().filter(|it| it.begun <= moment);
        let mut allowed: Vec<Stamp> = later.map(|it| it.stamp).collect();
        allowed.extend(safe.is_none().then_some(0));
        assert!(allowed.contains(seen), "sector {sector}: {seen}, allowed {allowed:?}");
    }
}

pub fn run(seed: u64, rounds: u64, cuts: usize) {
    let setup = Setup { blocks: 192 + 64 * (seed % 4), split: seed % 2 == 1, ..Setup::default() };
    let disk = setup.image();
    disk.set_schedule(Schedule::Shuffled { seed });
    let image = open(&disk);
    let sectors = setup.sectors();
    let guests: Vec<Told> = std::thread::scope(|scope| {
        let (image, disk) = (&image, &disk);
        let start = |me| scope.spawn(move || guest(image, disk, me, sectors, rounds, seed));
        let threads: Vec<_> = (0..GUESTS).map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    drop(image);
    let mut told = Told { changes: vec![Vec::new(); sectors as usize], flushes: Vec::new() };
    for guest in guests {
        told.flushes.extend(guest.flushes);
        for (all, own) in told.changes.iter_mut().zip(guest.changes) {
            all.extend(own);
        }
    }
    let moments: Vec<Moment> = disk.crash_points().collect();
    let step = (moments.len() / cuts).max(1);
    for (index, moment) in moments.into_iter().step_by(step).enumerate() {
        let _tell = Tell(format!("seed {seed}, cut at {moment:?}"));
        CRASHES.fetch_add(1, Ordering::Relaxed);
        let crashed = disk.crash_at(moment, &mut Fate::seeded(seed * 1000 + index as u64));
        let seen = contents_read_only(&crashed).unwrap();
        judge(&seen, &told, moment);
        if index % 10 == 0 {
            drop(open(&crashed));
            assert!(contents_read_only(&crashed).unwrap() == seen, "recovery came to another end");
        }
    }
}

#[test]
fn queues_and_maintenance_on_threads_of_their_own_survive_power_cuts() {
    for seed in 0..3 {
        run(seed, 250, 40);
    }
}
