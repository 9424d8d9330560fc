//! Faults strike the intended calls, as often as they should.

use std::io;

use flowstone_block::{Errno, Outcome};

use super::*;
use crate::{Call, Fate, Fault, Landed};

fn try_put(disk: &SimDisk, at: u64, bytes: u64, fill: u8) -> Outcome {
    disk.run(write(at, bytes), &mut vec![fill; bytes as usize])
}

#[test]
fn the_nth_call_of_a_kind_fails_once() {
    let disk = SimDisk::new(8192);
    disk.inject(Fault::fail(Errno::IO).on(Call::Write).after(2));
    put(&disk, 0, 512, 1);
    disk.run(read(0, 512), &mut [0; 512]).unwrap();
    put(&disk, 512, 512, 2);
    assert_eq!(try_put(&disk, 1024, 512, 3), Err(Errno::IO));
    assert_eq!((look(&disk, 1024), disk.faults_struck()), (0, 1));
    put(&disk, 1024, 512, 3);
    assert_eq!(look(&disk, 1024), 3);
}

#[test]
fn a_bad_range_fails_until_it_is_cleared() {
    let disk = SimDisk::new(16384);
    disk.inject(Fault::fail(Errno::IO).within(4096..4608).always());
    for _ in 0..3 {
        assert_eq!(disk.run(read(0, 8192), &mut [0; 8192]), Err(Errno::IO));
        assert_eq!(try_put(&disk, 4096, 512, 1), Err(Errno::IO));
        put(&disk, 0, 4096, 1);
        put(&disk, 4608, 512, 1);
        sync(&disk);
    }
    disk.clear_faults();
    put(&disk, 4096, 512, 1);
    assert_eq!(disk.faults_struck(), 6);
}

#[test]
fn every_kind_of_call_can_fail() {
    let disk = SimDisk::new(8192);
    for (call, op) in [
        (Call::Read, read(0, 512)),
        (Call::Write, write(0, 512)),
        (Call::Datasync, FileOp::Datasync),
        (Call::Punch, punch(0, 4096)),
        (Call::Zero, zero(0, 4096)),
        (Call::Allocate, allocate(0, 4096)),
    ] {
        let mut memory = vec![0; if matches!(call, Call::Read | Call::Write) { 512 } else { 0 }];
        disk.inject(Fault::fail(Errno::IO).on(call));
        assert_eq!(disk.run(op, &mut memory), Err(Errno::IO), "{call:?}");
        assert_eq!(disk.run(op, &mut memory), Ok(()), "{call:?}");
    }
    disk.inject(Fault::fail(Errno::NOSPC).on(Call::SetSize));
    let refused = disk.set_size(1 << 20).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
    assert_eq!(disk.size().unwrap(), 8192);
}

#[test]
fn faults_reach_requests_of_channels() {
    let disk = SimDisk::new(8192);
    disk.inject(Fault::fail(Errno::IO).on(Call::Write).after(1));
    let mut queue = Queue::new(&disk);
    for n in 0..3 {
        queue.submit(write(n * 512, 512), 1);
    }
    let outcomes: Vec<Outcome> = queue.finish(3).iter().map(|done| done.outcome).collect();
    assert_eq!(outcomes, [Ok(()), Err(Errno::IO), Ok(())]);
}

#[test]
fn a_full_host_refuses_new_pages_only_and_punching_makes_room() {
    let disk = SimDisk::new(1 << 20);
    disk.set_capacity(Some(3 * 4096));
    put(&disk, 0, 8192, 1);
    assert_eq!(try_put(&disk, 8192, 8192, 2), Err(Errno::NOSPC));
    assert_eq!((look(&disk, 8192), disk.allocated_bytes().unwrap()), (0, 8192));
    put(&disk, 0, 8192, 3);
    disk.run(allocate(4096, 8192), &mut []).unwrap();
    assert_eq!(disk.run(allocate(12288, 4096), &mut []), Err(Errno::NOSPC));
    assert_eq!(disk.run(zero(12288, 4096), &mut []), Err(Errno::NOSPC));
    disk.run(zero(1 << 20, 4096), &mut []).expect("nothing to do past the end");
    put(&disk, 8192, 4096, 4);
    disk.run(punch(0, 4096), &mut []).unwrap();
    put(&disk, 12288, 4096, 5);
    let full = disk.crash_at(disk.now(), &mut Fate::everything());
    assert_eq!(full.allocated_bytes().unwrap(), 3 * 4096);
    assert_eq!(try_put(&full, 16384, 512, 1), Err(Errno::NOSPC), "the host is full after a crash");
}

#[test]
fn what_was_refused_for_space_leaves_nothing_behind() {
    let disk = SimDisk::new(1 << 20);
    disk.set_capacity(Some(0));
    assert_eq!(try_put(&disk, 0, 4096, 1), Err(Errno::NOSPC));
    for moment in disk.crash_points() {
        assert_eq!(look(&disk.crash_at(moment, &mut Fate::everything()), 0), 0);
    }
}

#[test]
fn a_lost_write_and_a_misdirected_one_claim_to_be_done() {
    let disk = SimDisk::new(16384);
    disk.inject(Fault::lose().on(Call::Write).within(0..512));
    disk.inject(Fault::misdirect(FileOffset::new(8192)));
    put_durably(&disk, 0, 512, 1);
    put(&disk, 4096, 512, 2);
    sync(&disk);
    let crashed = disk.crash_at(disk.now(), &mut Fate::nothing_more());
    for disk in [&disk, &crashed] {
        assert_eq!([0, 4096, 8192].map(|at| look(disk, at)), [0, 0, 2]);
    }
}

#[test]
fn a_write_that_fails_partly_leaves_its_first_half() {
    let disk = SimDisk::new(16384);
    disk.inject(Fault::fail_partly(Errno::IO));
    assert_eq!(try_put(&disk, 0, 2048, 1), Err(Errno::IO));
    assert_eq!((look(&disk, 1023), look(&disk, 1024)), (1, 0));
}

#[test]
fn a_failed_datasync_is_reported_once_and_never_made_up_for() {
    let disk = SimDisk::new(16384);
    put(&disk, 0, 4096, 1);
    disk.inject(Fault::fail(Errno::IO).on(Call::Datasync));
    assert_eq!(disk.run(FileOp::Datasync, &mut []), Err(Errno::IO));
    put(&disk, 4096, 4096, 2);
    sync(&disk);
    sync(&disk);
    assert_eq!(look(&disk, 0), 1, "it is still in the page cache");
    let crashed = disk.crash_at(disk.now(), &mut Fate::nothing_more());
    assert_eq!((look(&crashed, 0), look(&crashed, 4096)), (0, 2));
    let next = disk.kill_at(disk.now(), &mut Fate::everything());
    sync(&next);
    assert_eq!(look(&next.crash_at(next.now(), &mut Fate::nothing_more()), 0), 0);
    put(&disk, 0, 4096, 3);
    sync(&disk);
    assert_eq!(look(&disk.crash_at(disk.now(), &mut Fate::nothing_more()), 0), 3);
}

#[test]
fn a_datasync_that_lies_makes_nothing_durable_but_the_next_one_does() {
    let disk = SimDisk::new(4096);
    put(&disk, 0, 4096, 1);
    disk.inject(Fault::lose().on(Call::Datasync));
    sync(&disk);
    assert_eq!(look(&disk.crash_at(disk.now(), &mut Fate::nothing_more()), 0), 0);
    sync(&disk);
    assert_eq!(look(&disk.crash_at(disk.now(), &mut Fate::nothing_more()), 0), 1);
}

/// Regression: a failed call could only have done nothing, or the first half of a write.
#[test]
fn what_fails_may_have_landed_wholly_or_in_part() {
    for (landed, halves) in
        Landed::ALL.into_iter().zip([[false, false], [true, false], [false, true], [true, true]])
    {
        for op in [write(0, 16384), punch(0, 16384), zero(0, 16384)] {
            let disk = SimDisk::new(16384);
            put_durably(&disk, 0, 16384, 1);
            disk.inject(Fault::fail(Errno::IO).landed(landed));
            let mut memory = vec![2; if op == write(0, 16384) { 16384 } else { 0 }];
            assert_eq!(disk.run(op, &mut memory), Err(Errno::IO));
            let crashed = disk.crash_at(disk.now(), &mut Fate::everything());
            for disk in [&disk, &crashed] {
                let changed = [0, 8191, 8192, 16383].map(|at| look(disk, at) != 1);
                let [first, second] = halves;
                assert_eq!(changed, [first, first, second, second], "{op:?} {landed:?}");
            }
        }
        let disk = SimDisk::new(16384);
        disk.inject(Fault::fail(Errno::IO).landed(landed));
        assert_eq!(disk.run(allocate(0, 16384), &mut []), Err(Errno::IO));
        let pages = halves.iter().filter(|half| **half).count() as u64 * 2;
        assert_eq!(disk.allocated_bytes().unwrap(), pages * 4096, "{landed:?}");
        disk.inject(Fault::fail(Errno::IO).landed(landed));
        disk.set_size(32768).unwrap_err();
        assert_eq!(disk.size().unwrap() == 32768, landed == Landed::Whole);
    }
}

#[test]
fn a_datasync_that_fails_may_have_made_all_durable() {
    let disk = SimDisk::new(4096);
    put(&disk, 0, 4096, 1);
    disk.inject(Fault::fail(Errno::IO).on(Call::Datasync).landed(Landed::Whole));
    assert_eq!(disk.run(FileOp::Datasync, &mut []), Err(Errno::IO));
    assert_eq!(look(&disk.crash_at(disk.now(), &mut Fate::nothing_more()), 0), 1);
    put(&disk, 0, 4096, 2);
    disk.inject(Fault::fail(Errno::IO).landed(Landed::Whole));
    assert_eq!(disk.run(durable_write(0, 4096), &mut [3; 4096]), Err(Errno::IO));
    assert_eq!(look(&disk.crash_at(disk.now(), &mut Fate::nothing_more()), 0), 3);
}
