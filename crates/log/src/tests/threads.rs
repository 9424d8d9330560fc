//! Real threads: queues and the maintenance worker sleep until another thread wakes them. Only
//! threads that really sleep can reveal a missing wake-up.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use flowstone_block::{BlockingDisk, Extent, Op, Sector, SectorCount};
use flowstone_fileio::Access;
use flowstone_image::DiscardMode;
use flowstone_sim::{Schedule, SimDisk};
use flowstone_testkit::{wait_for, wait_until};

use super::fixture::{BLOCK_SECTORS, Setup};
use super::history_model::{read_stamps, stamp};
use crate::disk::LogImage;
use crate::maintenance::QUIET_TIME;
use crate::state::LogState;

/// Far longer than the tests take.
const HANGS: Duration = flowstone_testkit::HANG;

fn open(disk: &SimDisk) -> Arc<LogImage> {
    let file = Box::new(disk.clone());
    let mode = DiscardMode::Deallocate;
    Arc::new(LogImage::open(Path::new("image"), file, mode, Access::Write, None, None).unwrap())
}

/// Writes and reads every fourth block, from `first` on, many times.
fn guest(image: &LogImage, first: u64, blocks: u64, rounds: u64) {
    let mut disk = BlockingDisk::new(image).unwrap();
    let mut random = Rng::with_seed(first);
    let mut latest = vec![0; blocks as usize / 4];
    let mut bytes = vec![0; 4096];
    for round in 1..=rounds {
        let index = random.usize(..latest.len());
        let lba = index as u64 * 4 + first;
        let start = lba * BLOCK_SECTORS;
        stamp(&mut bytes, start, round);
        disk.write(Sector::new(start), &mut bytes).unwrap();
        latest[index] = round;
        if random.u8(..16) == 0 {
            disk.run(Op::Flush).unwrap();
        }
        let index = random.usize(..latest.len());
        let start = (index as u64 * 4 + first) * BLOCK_SECTORS;
        disk.read(Sector::new(start), &mut bytes).unwrap();
        assert_eq!(read_stamps(&bytes, start).unwrap(), vec![latest[index]; 8]);
    }
}

#[test]
fn no_thread_sleeps_through_what_it_waits_for() {
    for schedule in [Schedule::InOrder, Schedule::Shuffled { seed: 1 }] {
        let setup = Setup::default();
        let disk = setup.image();
        disk.set_schedule(schedule);
        let image = open(&disk);
        let (done, all_done) = channel();
        let guests = [0, 1, 2, 3].map(|first| {
            let (image, done) = (Arc::clone(&image), done.clone());
            thread::spawn(move || {
                guest(&image, first, setup.blocks, 1000);
                done.send(()).unwrap();
            })
        });
        drop(done);
        for _ in 0..4 {
            all_done.recv_timeout(HANGS).expect("no guest hangs or fails");
        }
        guests.into_iter().for_each(|guest| guest.join().unwrap());
        drop(image);
        drop(open(&disk));
    }
}

/// The maintenance worker had decided how long to sleep before there was anything to free, and
/// slept on.
#[test]
fn idle_maintenance_is_woken_when_segments_die() {
    let disk = Setup::default().image();
    let image = open(&disk);
    let mut guest = BlockingDisk::new(&*image).unwrap();
    let mut bytes = vec![1; 1 << 20];
    let dead = || LogState::of(&image.log, &image.volume).segments_dead;
    // On a busy machine it may be woken and be late all the same.
    wait_until("dead space is given back before the maintenance worker wakes by itself", || {
        guest.write(Sector::new(0), &mut bytes).unwrap();
        wait_until("nothing is dead", || dead() == 0);
        // Until it sleeps for long.
        thread::sleep(Duration::from_millis(300));
        let all = Extent::new(Sector::new(0), SectorCount::new(2048)).unwrap();
        guest.run(Op::Discard(all)).unwrap();
        let start = Instant::now();
        while dead() > 0 && start.elapsed() < QUIET_TIME / 2 {
            thread::sleep(Duration::from_millis(20));
        }
        dead() == 0
    });
}

/// Discarded blocks between live ones were freed only when the cleaner needed room.
#[test]
fn what_is_discarded_between_blocks_that_stay_goes_back_when_the_guest_pauses() {
    let setup = Setup { blocks: 1024, ..Setup::default() };
    let disk = setup.image();
    let image = open(&disk);
    let mut guest = BlockingDisk::new(&*image).unwrap();
    let mut bytes = vec![0; 4096];
    let start_of = |lba: u64| Sector::new(lba * BLOCK_SECTORS);
    for lba in 0..setup.blocks {
        stamp(&mut bytes, lba * BLOCK_SECTORS, 1);
        guest.write(start_of(lba), &mut bytes).unwrap();
    }
    let used = || LogState::of(&image.log, &image.volume).segments_used;
    let full = used();
    for lba in (0..setup.blocks).filter(|lba| lba % 16 != 0) {
        let block = Extent::new(start_of(lba), SectorCount::new(BLOCK_SECTORS)).unwrap();
        guest.run(Op::Discard(block)).unwrap();
    }
    wait_for("half of the segments are free", || {
        let used = used();
        if used <= full / 2 { Ok(()) } else { Err((used, full)) }
    });
    for lba in 0..setup.blocks {
        guest.read(start_of(lba), &mut bytes).unwrap();
        let round = u64::from(lba % 16 == 0);
        assert_eq!(read_stamps(&bytes, lba * BLOCK_SECTORS).unwrap(), vec![round; 8]);
    }
}
