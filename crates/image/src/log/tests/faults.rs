//! The host fails: a write of a record, a write of a checkpoint, a sync.

use flowstone_block::{Errno, OpKind};
use flowstone_sim::{Call, Fate, Fault, Schedule};

use super::crash::{Tell, recover, some_moments};
use super::driver::{BLOCK_SECTORS, Mix, Rig, SEGMENT_BYTES, Setup, contents_read_only};
use super::oracle::End;
use crate::log::keeper::CheckpointKind;
use crate::log::record::Entry;
use crate::log::segments::State;
use crate::log::tail::Draft;

/// The bytes of all segments.
const SEGMENTS: std::ops::Range<u64> = SEGMENT_BYTES..u64::MAX;
const SUPERBLOCKS: std::ops::Range<u64> = 0..SEGMENT_BYTES;

fn used(setup: Setup, seed: u64) -> Rig {
    let mut rig = setup.rig(seed);
    rig.run(20);
    rig.disk.set_schedule(Schedule::Shuffled { seed });
    // Queues that are opened from now on keep this schedule.
    let mut rig = rig.reopen().unwrap();
    rig.guests().mix = Mix::on(60);
    rig.run(60);
    rig
}

/// Writes of records fail now and then.
pub fn failed_records(seed: u64, moments: usize) {
    let setup = Setup { split: seed % 2 == 1, ..Setup::default() };
    let mut rig = used(setup, seed);
    let fault = match seed % 3 {
        0 => Fault::fail(Errno::IO),
        1 => Fault::fail_partly(Errno::IO),
        _ => Fault::fail(Errno::NOSPC),
    };
    for after in [0, 3, 9] {
        rig.disk.inject(fault.clone().on(Call::Write).within(SEGMENTS).after(after));
        rig.run(40);
        rig.disk.clear_faults();
    }
    assert!(!rig.guests().failures.is_empty());
    let changes = |kind| kind != OpKind::Read && kind != OpKind::Flush;
    assert!(rig.guests().failures.iter().all(|failure| changes(failure.kind)));
    rig.check();
    rig.write_blocks(0..9).unwrap();
    rig.flush().unwrap();
    let (disk, story) = rig.abandon();
    for (index, moment) in some_moments(&disk, moments).enumerate() {
        let crashed = disk.crash_at(moment, &mut Fate::seeded(seed + index as u64));
        drop(recover(&crashed, setup, &story, moment, End::PowerCut, seed));
    }
    let now = disk.now();
    let killed = disk.kill_at(now, &mut Fate::everything());
    recover(&killed, setup, &story, now, End::Kill, seed).check();
}

#[test]
fn after_a_failed_record_the_log_goes_on_elsewhere() {
    for seed in 0..6 {
        let _tell = Tell(format!("seed {seed}"));
        failed_records(seed, 10);
    }
}

/// The keeper starts the log anew when every owner knows that its record has failed. It once took
/// the failed write itself for that knowledge; an owner that looked late found that "everything
/// before the new place has committed", and told its guest that the write was done.
#[test]
fn a_failed_record_has_not_committed_however_late_its_owner_looks() {
    let mut rig = Setup::default().rig(1);
    rig.write_blocks(0..4).unwrap();
    let owner = rig.core.new_waker().unwrap();
    let entries = [Entry::Data { lba: 5, checksum: 1 }];
    let draft =
        Draft { stream: 0, entries: &entries, payload_blocks: 1, bases: &[], only_trims: false };
    let failed = rig.core.place(&draft, &owner).unwrap().header.sequence;
    let behind = rig.core.place(&draft, &owner).unwrap().header.sequence;
    rig.core.written(failed, false, &owner);
    rig.core.written(behind, true, &owner);
    rig.quiet();
    assert!(rig.core.is_broken(), "the owner of the failed records has not looked yet");
    assert!(!rig.core.has_committed(failed) && !rig.core.settle(failed));
    assert!(!rig.core.has_committed(behind) && !rig.core.settle(behind));
    rig.quiet();
    assert!(!rig.core.is_broken());
    rig.write_blocks(0..4).unwrap();
    rig.check();
}

/// Writes of maps and superblocks fail now and then.
pub fn failed_checkpoints(seed: u64, moments: usize) {
    let setup = Setup { split: seed % 2 == 1, ..Setup::default() };
    let mut rig = used(setup, seed);
    for round in 0..6 {
        let range = if round % 2 == 0 { SEGMENTS } else { SUPERBLOCKS };
        let fault = match seed % 2 {
            0 => Fault::fail(Errno::IO),
            _ => Fault::fail_partly(Errno::IO),
        };
        rig.disk.inject(fault.on(Call::Write).within(range).after(seed / 2 % 2));
        // Guests stand still meanwhile: the fault is not meant for them.
        let made = rig.keeper.checkpoint(CheckpointKind::Running);
        rig.disk.clear_faults();
        rig.run(15);
        assert_eq!(rig.guests().failures, [], "{made:?}");
    }
    rig.checkpoint().unwrap();
    rig.check();
    rig.flush().unwrap();
    let (disk, story) = rig.abandon();
    for (index, moment) in some_moments(&disk, moments).enumerate() {
        let crashed = disk.crash_at(moment, &mut Fate::seeded(seed + index as u64));
        drop(recover(&crashed, setup, &story, moment, End::PowerCut, seed));
    }
}

#[test]
fn a_checkpoint_that_fails_costs_nothing() {
    for seed in 0..4 {
        let _tell = Tell(format!("seed {seed}"));
        failed_checkpoints(seed, 25);
    }
}

/// After a failed attempt the next one went to the other slot: the one with the only superblock
/// that counted. A power cut then could tear both.
#[test]
fn a_superblock_that_could_not_be_written_does_not_cost_the_one_that_counts() {
    let setup = Setup::default();
    let mut rig = setup.rig(1);
    rig.write_blocks(0..8).unwrap();
    rig.flush().unwrap();
    rig.disk.inject(Fault::fail_partly(Errno::IO).on(Call::Write).within(SUPERBLOCKS));
    rig.checkpoint().unwrap_err();
    let before = rig.disk.now();
    rig.checkpoint().unwrap();
    let (disk, story) = rig.abandon();
    for moment in disk.crash_points().filter(|moment| *moment >= before) {
        for seed in 0..12 {
            let fate = Fate::seeded(seed).torn_percent(100);
            let crashed = disk.crash_at(moment, &mut fate.clone());
            drop(recover(&crashed, setup, &story, moment, End::PowerCut, 0));
        }
    }
}

/// A sync fails: of a guest's flush or of a checkpoint.
pub fn failed_sync(seed: u64, moments: usize) {
    let setup = Setup { split: seed % 2 == 1, ..Setup::default() };
    let mut rig = used(setup, seed);
    rig.run((seed % 16) as u32 * 40);
    rig.flush().unwrap();
    rig.disk.inject(Fault::fail(Errno::IO).on(Call::Datasync).after(seed % 4));
    rig.run(60);
    while !rig.core.sync.has_failed() {
        let _ = rig.flush();
        let _ = rig.checkpoint();
    }
    assert_eq!(rig.flush(), Err(Errno::IO), "a promise after a failed sync");
    rig.run(30);
    rig.checkpoint().unwrap_err();
    rig.settle();
    let seen = rig.contents();
    let (disk, story) = rig.close();
    story.judge(&seen, disk.now(), End::Kill).unwrap();
    for (index, moment) in some_moments(&disk, moments).enumerate() {
        let crashed = disk.crash_at(moment, &mut Fate::seeded(seed + index as u64));
        let _tell = Tell(format!("cut at {moment:?}"));
        drop(recover(&crashed, setup, &story, moment, End::PowerCut, seed));
    }
}

#[test]
fn after_a_failed_sync_nothing_is_promised_and_nothing_promised_is_lost() {
    for seed in 0..8 {
        let _tell = Tell(format!("seed {seed}"));
        failed_sync(seed, 10);
    }
}

/// A place that cannot be written must not be tried for ever.
#[test]
fn a_bad_spot_in_the_keepers_way_is_left_behind() {
    let setup = Setup::default();
    let mut rig = used(setup, 1);
    rig.checkpoint().unwrap();
    rig.write_blocks(0..4).unwrap();
    // The rest of every segment in use is bad, those of the map and of copies among them.
    let holds = |state| matches!(state, State::Open | State::Sealed | State::Dead);
    let used: Vec<u32> = {
        let tail = rig.core.tail();
        tail.segments.iter().filter(|(_, it)| holds(it.state)).map(|(number, _)| number).collect()
    };
    for number in used {
        let segment = u64::from(number) * SEGMENT_BYTES..u64::from(number + 1) * SEGMENT_BYTES;
        rig.disk.inject(Fault::fail(Errno::IO).on(Call::Write).within(segment).always());
    }
    let made = (0..30).any(|_| rig.checkpoint().is_ok());
    assert!(made, "every checkpoint goes to the same bad place");
    rig.disk.clear_faults();
    rig.check();
}

/// A failed seal once left the segment that it should have ended open for ever.
#[test]
fn segments_are_not_left_open_by_failures() {
    for seed in 0..4 {
        let mut rig = used(Setup { split: seed % 2 == 1, ..Setup::default() }, seed);
        rig.guests().mix = Mix::writes(0..60);
        for after in 0..40 {
            let fault = Fault::fail(Errno::IO).on(Call::Write).within(SEGMENTS);
            rig.disk.inject(fault.after(after % 7));
            rig.run(12);
            rig.disk.clear_faults();
            rig.settle();
            rig.audit();
        }
    }
}

/// A record failed, and was on the medium all the same; so was the one behind it, whose guest heard that
/// it had failed, too. The block was not mapped, so a trim of it was done at once, and a flush promised it.
/// Then power was cut before the log had been started anew: replay found both records, and the trim was
/// undone.
#[test]
fn a_trim_over_zeroes_after_a_failed_write_of_the_block_is_not_undone() {
    for sectors in [40..48, 41..44, 44..56] {
        let _tell = Tell(format!("{sectors:?}"));
        let mut rig = Setup::default().rig(1);
        rig.write_blocks(50..51).unwrap();
        rig.flush().unwrap();
        // Its header ends in zeroes, as does the space it is written to: half of it is all of it.
        rig.disk.inject(Fault::fail_partly(Errno::IO).on(Call::Write).within(SEGMENTS));
        rig.guests().zero(0, 50 * BLOCK_SECTORS..51 * BLOCK_SECTORS);
        rig.guests().kick(0);
        rig.guests().write(1, 40..48);
        rig.guests().kick(1);
        let turn = |rig: &Rig| {
            for _ in 0..20 {
                for queue in 0..2 {
                    let mut guests = rig.guests();
                    guests.kick(queue);
                    guests.nap(queue);
                    guests.reap(queue);
                }
            }
        };
        turn(&rig);
        assert_eq!(rig.guests().failures.len(), 2, "both records have failed");
        rig.guests().zero(0, sectors);
        turn(&rig);
        rig.guests().flush(1);
        turn(&rig);
        let now = rig.disk.now();
        let crashed = rig.disk.crash_at(now, &mut Fate::everything());
        let seen = contents_read_only(&crashed).unwrap();
        assert!(seen[47] > 0, "replay has found the records that failed");
        rig.guests().story.judge(&seen, now, End::PowerCut).unwrap();
        rig.settle();
        rig.flush().unwrap();
        let now = rig.disk.now();
        let crashed = rig.disk.crash_at(now, &mut Fate::nothing_more());
        let seen = contents_read_only(&crashed).unwrap();
        rig.guests().story.judge(&seen, now, End::PowerCut).unwrap();
        rig.check();
    }
}
