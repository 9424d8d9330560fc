//! Tests of a full disk, a full host, and freed space.

use std::path::Path;
use std::rc::Rc;
use std::thread::sleep;
use std::time::Duration;

use flowstone_block::{BlockingDisk, Errno, Sector};
use flowstone_fileio::{Access, FileIo};
use flowstone_image::DiscardMode;
use flowstone_log_store::segments::State;
use flowstone_sim::{Call, Fate, Fault, Schedule};

use super::crash::{Tell, recover, some_moments};
use super::fixture::{BLOCK_SECTORS, Fixture, Mix, SEGMENT_BYTES, Setup, contents_read_only};
use super::history_model::{End, HistoryModel};
use super::scheduler::with_hook;
use crate::disk::LogImage;
use crate::maintenance::CheckpointKind;

/// Longer than the tenth of a second after which the maintenance worker tries a full host again.
const ASK_AGAIN: Duration = Duration::from_millis(120);

/// Overwrites a disk repeatedly whose blocks are all in use.
pub fn full_disk(seed: u64, requests: u32) {
    let setup = Setup { split: seed % 2 == 1, ..Setup::default() };
    let mut fixture = setup.fixture(seed);
    let all = 0..setup.blocks;
    fixture.write_blocks(all.clone()).unwrap();
    fixture.disk.set_schedule(Schedule::Shuffled { seed });
    let mut fixture = fixture.reopen().unwrap();
    fixture.guests().mix = Mix { unaligned_percent: 20, depth: 16, ..Mix::writes(all) };
    fixture.run(requests);
    assert_eq!(fixture.guests().failures, []);
    assert_eq!(fixture.volume.map.mapped(), setup.blocks);
    fixture.check();
    let limit = u64::from(fixture.log.append_state().segments().limit()) * SEGMENT_BYTES;
    assert!(fixture.disk.allocated_bytes().unwrap() <= limit);
    fixture.reopen().unwrap().audit();
}

#[test]
fn a_full_disk_is_overwritten_for_long_and_never_without_room() {
    for seed in 0..2 {
        let _tell = Tell(format!("seed {seed}"));
        full_disk(seed, 5000);
    }
}

/// Writes until the host has no more space.
fn fill(fixture: &mut Fixture) {
    for round in 0..200_000 {
        let lba = round * 7 % (fixture.setup.blocks - 4);
        if let Err(errno) = fixture.write_blocks(lba..lba + 4) {
            assert_eq!(errno, Errno::NOSPC);
            return;
        }
    }
    panic!("the host is never full");
}

fn host_of(segments: u64) -> Option<u64> {
    Some(segments * SEGMENT_BYTES + 17 * 4096)
}

#[test]
fn a_full_host_refuses_writes_and_nothing_else() {
    for segments in 10..16 {
        let _tell = Tell(format!("{segments} segments"));
        let setup = Setup { blocks: 1024, ..Setup::default() };
        let mut fixture = setup.fixture(segments);
        fixture.disk.set_capacity(host_of(segments));
        fill(&mut fixture);
        fixture.check();
        fixture.flush().unwrap();
        for _ in 0..20 {
            let _ = fixture.write_blocks(0..4);
        }
        fixture.check();
        let sectors = setup.blocks * BLOCK_SECTORS;
        fixture.read(0..sectors).unwrap();

        // The guest discards half of the disk.
        fixture.zero(0..sectors / 2).unwrap();
        fixture.flush().unwrap();
        assert!(comes_back(&mut fixture), "{segments} segments: no writes after a trim");
        fixture.check();
        fill(&mut fixture);

        // The host gets more space.
        fixture.disk.set_capacity(host_of(segments + 6));
        assert!(comes_back(&mut fixture), "{segments} segments: no writes after the host has room");
        fixture.check();
        let failures = fixture.guests().failures.iter().all(|it| it.errno == Errno::NOSPC);
        assert!(failures);
        fixture.reopen().unwrap().check();
    }
}

/// Returns whether writes succeed again within a few tries.
fn comes_back(fixture: &mut Fixture) -> bool {
    for _ in 0..8 {
        if fixture.write_blocks(0..1).is_ok() {
            return true;
        }
        sleep(ASK_AGAIN);
    }
    false
}

/// Guests of a full host keep trying, with all kinds of requests.
pub fn full_host(seed: u64) {
    let setup = Setup { blocks: 1024, split: seed % 2 == 1, ..Setup::default() };
    let mut fixture = setup.fixture(seed);
    fixture.disk.set_capacity(host_of(7 + seed % 9));
    fixture.guests().mix = Mix { depth: 12, zero_percent: 12, ..Mix::on(setup.blocks) };
    fixture.run(2500);
    let failures = fixture.guests().failures.clone();
    assert!(failures.iter().all(|failure| failure.errno == Errno::NOSPC), "{failures:?}");
    assert!(!failures.is_empty(), "the host was never full");
    fixture.check();
    fixture.disk.set_capacity(None);
    // A write that fits into the present space proves nothing about later ones: the host may just
    // have been tried, and is not tried again so soon.
    sleep(ASK_AGAIN);
    assert!(comes_back(&mut fixture));
    fixture.write_blocks(0..1).unwrap();
    fixture.check();
}

#[test]
fn nothing_hangs_on_a_full_host() {
    for seed in 0..6 {
        let _tell = Tell(format!("seed {seed}"));
        full_host(seed);
    }
}

#[test]
fn after_a_crash_an_image_on_a_full_host_opens() {
    for segments in [8, 10] {
        let setup = Setup { blocks: 1024, ..Setup::default() };
        let mut fixture = setup.fixture(1);
        fixture.disk.set_capacity(host_of(segments));
        fill(&mut fixture);
        fixture.flush().unwrap();
        let (disk, model) = fixture.abandon();
        let moment = disk.now();
        let crashed = disk.crash_at(moment, &mut Fate::everything());
        let mut fixture = recover(&crashed, setup, &model, moment, End::PowerCut, 0);
        fixture.zero(0..setup.blocks * BLOCK_SECTORS / 2).unwrap();
        fixture.flush().unwrap();
        assert!(comes_back(&mut fixture));
        fixture.check();
    }
}

/// At every crash point: the reserve segments for recovery are allocated.
pub fn crashes_on_a_full_host(seed: u64) {
    let setup = Setup { blocks: 1024, split: seed % 2 == 1, ..Setup::default() };
    let mut fixture = setup.fixture(seed);
    let segments = 9 + seed % 9;
    fixture.disk.set_capacity(host_of(segments));
    fixture.guests().mix = Mix { depth: 12, zero_percent: 12, ..Mix::on(setup.blocks) };
    fixture.run(1500);
    let (disk, model) = fixture.abandon();
    for (index, moment) in some_moments(&disk, 25).enumerate() {
        let _tell = Tell(format!("{segments} segments, cut at {moment:?}"));
        let crashed = disk.crash_at(moment, &mut Fate::seeded(seed + index as u64));
        let mut fixture = recover(&crashed, setup, &model, moment, End::PowerCut, seed);
        fixture.run(20);
        fixture.check();
    }
}

#[test]
fn an_image_on_a_full_host_opens_after_any_power_cut() {
    for seed in 0..4 {
        let _tell = Tell(format!("seed {seed}"));
        crashes_on_a_full_host(seed);
    }
}

/// A clean image whose host is full when it is opened, and has space later.
#[test]
fn room_that_comes_before_the_first_write_has_succeeded_is_noticed() {
    let setup = Setup::default();
    let mut fixture = setup.fixture(1);
    fixture.write_blocks(0..8).unwrap();
    let (disk, model) = fixture.close();
    let full = disk.allocated_bytes().unwrap();
    let punched = super::fixture::without_history(&disk);
    drop(disk);
    punched.set_capacity(Some(punched.allocated_bytes().unwrap().min(full)));
    let mut fixture = Fixture::open(&punched, setup, model, 1).unwrap();
    let refused = (0..40).any(|round| fixture.write_blocks(round..round + 4).is_err());
    assert!(refused, "the host was not full");
    punched.set_capacity(None);
    assert!(comes_back(&mut fixture), "the image has not noticed that there is room");
    fixture.check();
}

/// The very first segment had no space. Once that had been refused the host was never tried again,
/// since no request was waiting any more, and nothing had been written since the image was opened.
#[test]
fn a_head_that_could_not_get_space_gets_it_later() {
    let setup = Setup::default();
    let disk = setup.image();
    // Space for the other superblock and no more.
    disk.set_capacity(Some(disk.allocated_bytes().unwrap() + 4096));
    let model = HistoryModel::new(vec![0; (setup.blocks * BLOCK_SECTORS) as usize], 1);
    let mut fixture = Fixture::open(&disk, setup, model, 1).unwrap();
    for _ in 0..3 {
        assert_eq!(fixture.write_blocks(0..4), Err(Errno::NOSPC));
    }
    disk.set_capacity(None);
    assert!(comes_back(&mut fixture), "the image has not noticed that there is room");
    fixture.check();
}

/// A host that cannot preallocate (ZFS, NFS, a thin volume): a successful allocation means nothing,
/// and records find it full. Once new heads could not be started, nothing was written until the
/// image was reopened.
#[test]
fn a_host_without_reserved_space_that_was_full_for_a_moment_takes_writes_again() {
    for seed in 0..4 {
        let _tell = Tell(format!("seed {seed}"));
        let setup = Setup { blocks: 1024, split: seed % 2 == 1, ..Setup::default() };
        let mut fixture = setup.fixture(seed);
        // Allocation on such a host: the file gets its length, and is sparse.
        fixture.disk.set_size(64 * SEGMENT_BYTES).unwrap();
        fixture.disk.inject(Fault::lose().on(Call::Allocate).always());
        for moment in 0..3 {
            fixture.disk.set_capacity(Some(
                fixture.disk.allocated_bytes().unwrap() + (9 + seed * 7) * 4096,
            ));
            let failed = (0..20_000).find_map(|round| {
                let lba = round * 7 % (setup.blocks - 4);
                fixture.write_blocks(lba..lba + 4).err()
            });
            assert_eq!(failed, Some(Errno::NOSPC));
            for round in 0..12 {
                let _ = fixture.write_blocks(round..round + 4);
                if round == 5 {
                    // It is tried again meanwhile, in vain, and more than once.
                    sleep(ASK_AGAIN);
                }
            }
            assert!(fixture.guests().failures.iter().all(|it| it.errno == Errno::NOSPC));
            fixture.check();
            fixture.disk.set_capacity(None);
            assert!(comes_back(&mut fixture), "no writes though there is room, moment {moment}");
            fixture.flush().unwrap();
            fixture.check();
        }
        let (disk, model) = fixture.abandon();
        let now = disk.now();
        let crashed = disk.crash_at(now, &mut Fate::nothing_more());
        recover(&crashed, setup, &model, now, End::PowerCut, seed).check();
    }
}

/// The map that a checkpoint writes may still name blocks that died after its first step, and their
/// replacements need not be durable: such a segment waits for the next checkpoint.
#[test]
fn a_segment_that_dies_while_a_checkpoint_is_made_is_not_freed_by_it() {
    let died = (0..12).filter(|waits| dies_in_checkpoint(*waits)).count();
    assert!(died > 2, "{died}: the checkpoint was over before it began");
}

/// Makes the segment die when the checkpoint has waited `waits` times for the host; returns whether
/// the checkpoint lasted that long.
fn dies_in_checkpoint(mut waits: u32) -> bool {
    let setup = Setup { blocks: 2048, ..Setup::default() };
    let mut fixture = setup.fixture(1);
    fixture.write_blocks(0..8).unwrap();
    let first = fixture.volume.map.get(0).address();
    for lba in (8..256).step_by(8) {
        fixture.write_blocks(lba..lba + 8).unwrap();
    }
    fixture.flush().unwrap();
    let victim = fixture.log.shape.segment_of(first);
    let in_victim = |fixture: &Fixture, lba: u64| {
        let map_entry = fixture.volume.map.get(lba);
        map_entry.is_mapped() && fixture.log.shape.segment_of(map_entry.address()) == victim
    };
    let overwritten: Vec<u64> = (0..256).filter(|lba| in_victim(&fixture, *lba)).collect();
    assert_eq!(fixture.log.append_state().segments().get(victim).state, State::Sealed);
    let guests = Rc::clone(&fixture.guests);
    let mut once = Some(overwritten);
    let overwrite = move || {
        if waits > 0 {
            waits -= 1;
            return;
        }
        let mut guests = guests.borrow_mut();
        for lba in once.take().into_iter().flatten() {
            guests.write(0, lba * BLOCK_SECTORS..(lba + 1) * BLOCK_SECTORS);
        }
        while guests.in_flight() > 0 {
            guests.kick(0);
            guests.nap(0);
            guests.reap(0);
        }
    };
    with_hook(overwrite, || fixture.maintenance.writer.checkpoint(CheckpointKind::Running))
        .unwrap();
    if fixture.log.append_state().segments().get(victim).live > 0 {
        return false;
    }
    for round in 0..200 {
        let lba = 300 + round * 8 % 800;
        fixture.write_blocks(lba..lba + 8).unwrap();
        if round % 20 == 0 {
            let now = fixture.disk.now();
            // The rewritten segment may be on the medium, and the replacements of its blocks not.
            for seed in 0..6 {
                let crashed = fixture.disk.crash_at(now, &mut Fate::seeded(seed));
                let seen = contents_read_only(&crashed).unwrap();
                fixture.guests().model.judge(&seen, now, End::PowerCut).unwrap();
            }
        }
    }
    true
}

/// A device, or a file of limited size, that ends before the image's last segment would: an image
/// created there by an earlier version, with fewer segments. The missing segment was the first free
/// one, and the empty ones behind it were never tried.
#[test]
fn a_segment_that_the_host_never_has_does_not_hide_free_ones() {
    for missing in 1..4 {
        let _tell = Tell(format!("{missing} segments are missing"));
        let setup = Setup { blocks: 1024, ..Setup::default() };
        let mut fixture = setup.fixture(missing);
        let limit = u64::from(fixture.log.append_state().segments().limit());
        let end = (limit - missing) * SEGMENT_BYTES;
        fixture
            .disk
            .inject(Fault::fail(Errno::NOSPC).on(Call::Allocate).within(end..u64::MAX).always());
        // All existing segments get used.
        for round in 0..6 {
            for first in (0..setup.blocks).step_by(4) {
                let wrote = fixture.write_blocks(first..first + 4);
                assert_eq!(wrote, Ok(()), "round {round}, block {first}: {}", fixture.describe());
            }
        }
        fixture.flush().unwrap();
        fixture.zero(0..setup.blocks * BLOCK_SECTORS).unwrap();
        fixture.checkpoint().unwrap();
        fixture.checkpoint().unwrap();
        fixture.quiet();
        // As in a pause: unneeded space is freed.
        fixture.maintenance(|maintenance| maintenance.writer.space.trim_reserve());
        sleep(ASK_AGAIN);
        for first in (0..setup.blocks).step_by(4) {
            let wrote = fixture.write_blocks(first..first + 4);
            assert_eq!(wrote, Ok(()), "block {first} of an empty disk: {}", fixture.describe());
        }
        fixture.check();
    }
}

/// The host gets space while the guest is quiet. The guest's first write was refused all the same,
/// by the last known state of the host; a guest that retries soon never saw it.
#[test]
fn the_first_write_after_the_host_has_room_again_is_taken() {
    for reserves in [true, false] {
        // On a machine that does other work the maintenance worker may be late.
        flowstone_testkit::wait_until("they are taken", || first_writes_are_taken(reserves));
    }
}

fn first_writes_are_taken(reserves: bool) -> bool {
    let setup = Setup { blocks: 1024, ..Setup::default() };
    let disk = setup.image();
    disk.set_capacity(host_of(12));
    if !reserves {
        disk.inject(Fault::lose().on(Call::Allocate).always());
    }
    let file = Box::new(disk.clone());
    let mode = DiscardMode::Deallocate;
    let image = LogImage::open(Path::new("image"), file, mode, Access::Write, None, None).unwrap();
    let mut guest = BlockingDisk::new(&image).unwrap();
    let mut write = |block: u64| guest.write(Sector::new(block * BLOCK_SECTORS), &mut [7; 4096]);
    let refused = (0..setup.blocks).find(|block| write(*block).is_err());
    assert!(refused.is_some(), "the host was not full");
    disk.set_capacity(None);
    sleep(Duration::from_secs(1));
    (0..64).all(|block| write(block).is_ok())
}
