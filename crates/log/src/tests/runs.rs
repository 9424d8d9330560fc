//! Runs of many records of copies: the host fails in the middle of one, power is cut in it, the
//! host refuses memory for it, or does not take back what it has freed.

use flowstone_block::sync::atomic::Ordering;
use flowstone_block::{Errno, Outcome};
use flowstone_log_format::{LIFETIME_CLEANED, SegmentId};
use flowstone_log_store::segments::{Segment, State};
use flowstone_sim::{Call, Fate, Fault, Landed, Moment, Schedule};

use super::crash::{Tell, crash_everywhere, go_on, recover, some_moments};
use super::fixture::{Fixture, Mix, SEGMENT_BYTES, Setup};
use super::history_model::End;
use crate::maintenance::refusal;
use crate::state::LogState;

const SEGMENTS: std::ops::Range<u64> = SEGMENT_BYTES..u64::MAX;
/// Live blocks of a victim: copies of it are six or seven records, in flight at once.
const LIVE: std::ops::Range<u32> = 41..50;

fn setup() -> Setup {
    Setup { blocks: 512, reserve: Some(70), queues: 1, ..Setup::default() }
}

/// Returns an image with a stream of copies that replay finds, and its victims.
fn with_victims(seed: u64) -> (Fixture, Vec<SegmentId>) {
    let fixture = setup().fixture(seed);
    fixture.disk.set_schedule(Schedule::Shuffled { seed });
    let mut fixture = fixture.reopen().unwrap();
    for first in (0..400).step_by(16) {
        fixture.write_blocks(first..first + 16).unwrap();
    }
    for lba in (0..400).filter(|lba| lba % 8 == 0) {
        fixture.write_blocks(lba..lba + 1).unwrap();
    }
    fixture.flush().unwrap();
    let mut victims = victims(&fixture);
    assert!(victims.len() > 4, "{}", fixture.describe());
    clean(&mut fixture, victims.remove(0)).unwrap();
    fixture.checkpoint().unwrap();
    (fixture, victims)
}

fn victims(fixture: &Fixture) -> Vec<SegmentId> {
    let is_one =
        |it: &Segment| it.state == State::Sealed && it.lifetime == 0 && LIVE.contains(&it.live);
    let state = fixture.log.append_state();
    state.segments().iter().filter(|(_, it)| is_one(it)).map(|(number, _)| number).collect()
}

/// Cleans without requests meanwhile.
fn clean(fixture: &mut Fixture, victim: SegmentId) -> Outcome {
    let segment = fixture.log.append_state().segments().get(victim);
    let outcome = fixture.maintenance.cleaner.clean_into(
        &mut fixture.maintenance.writer,
        LIFETIME_CLEANED,
        (victim, segment),
    );
    fixture.log.end_copying();
    outcome
}

fn live(fixture: &Fixture, segment: SegmentId) -> u32 {
    fixture.log.append_state().segments().get(segment).live
}

/// Overwrites what still lives in a segment, and its space if it is free then.
fn use_up(fixture: &mut Fixture, segment: SegmentId) {
    let is_there = |lba: &u64| {
        let entry = fixture.volume.map.get(*lba);
        entry.is_mapped() && fixture.log.shape.segment_of(entry.address()) == segment
    };
    let lbas: Vec<u64> = (0..fixture.volume.blocks()).filter(is_there).collect();
    for lba in lbas {
        fixture.write_blocks(lba..lba + 1).unwrap();
    }
    fixture.maintenance.writer.release_freeable().unwrap();
    let state = fixture.log.append_state().segments().get(segment).state;
    if matches!(state, State::Free | State::Ready) {
        let start = fixture.log.shape.address(segment, 0).offset().get();
        fixture.disk.write_at(start, &vec![0x5a; SEGMENT_BYTES as usize]);
    }
}

/// The n-th record of a run cannot be written, wholly or in part. The records before it count,
/// those behind it do not, although they are on the medium: replay would not find them.
#[test]
fn a_record_that_fails_in_the_middle_of_a_run_costs_the_rest_of_it() {
    let mut copied_in_part = 0;
    for (number, after) in (0..6).cycle().take(48).enumerate() {
        let seed = number as u64;
        let errno = if number / 6 % 2 == 0 { Errno::IO } else { Errno::NOSPC };
        let landed = Landed::nth(seed / 12);
        let _tell = Tell(format!("{errno:?}, {landed:?}, after {after} records"));
        let (mut fixture, victims) = with_victims(seed);
        let victim = victims[0];
        let before = live(&fixture, victim);
        let fault = Fault::fail(errno).landed(landed).on(Call::Write).within(SEGMENTS);
        fixture.disk.inject(fault.after(after));
        assert_eq!(clean(&mut fixture, victim), Err(errno));
        fixture.check();
        copied_in_part += u32::from(live(&fixture, victim) < before);
        use_up(&mut fixture, victim);
        fixture.flush().unwrap();
        // The cleaner goes on, also with the victim's neighbours.
        clean(&mut fixture, victims[1]).unwrap();
        assert_eq!(live(&fixture, victims[1]), 0);
        fixture.check();
        let (disk, model) = fixture.abandon();
        let now = disk.now();
        for fate in [Fate::everything(), Fate::nothing_more(), Fate::seeded(seed)] {
            let crashed = disk.crash_at(now, &mut fate.clone());
            go_on(recover(&crashed, setup(), &model, now, End::PowerCut, seed), 10);
        }
    }
    assert!(copied_in_part > 20, "{copied_in_part} runs failed behind their first record");
}

/// At every moment of a run, with any part of what is in flight on the medium. The victim is used
/// again at once, so that its blocks are nowhere else; only freeing it has synced the copies.
#[test]
fn power_cuts_in_the_middle_of_a_run_lose_nothing() {
    for seed in 0..4 {
        let _tell = Tell(format!("seed {seed}"));
        let (mut fixture, victims) = with_victims(seed);
        let start = fixture.disk.now();
        for victim in &victims[..2] {
            clean(&mut fixture, *victim).unwrap();
            assert_eq!(live(&fixture, *victim), 0);
            use_up(&mut fixture, *victim);
        }
        fixture.check();
        let (disk, model) = fixture.abandon();
        let moments: Vec<Moment> = disk.crash_points().filter(|it| *it >= start).collect();
        assert!(moments.len() > 20, "{}", moments.len());
        let fates = |index: usize| {
            let seeded = (0..2).map(|it| Fate::seeded(seed * 1000 + index as u64 * 2 + it));
            [Fate::nothing_more(), Fate::everything()].into_iter().chain(seeded).collect()
        };
        crash_everywhere(&disk, setup(), &model, moments.into_iter(), fates);
    }
}

/// With memory for fewer records than a run has, runs are shorter: a record waits for the memory of
/// the one before. Two are needed: one is filled while the other is written.
#[test]
fn a_host_that_refuses_memory_shortens_runs_and_stops_no_cleaner() {
    for buffers in [2, 3, 5] {
        let _tell = Tell(format!("{buffers} buffers"));
        let (mut fixture, victims) = with_victims(1);
        fixture.maintenance.cleaner.release_memory();
        let refused = refusal::give(buffers);
        for victim in victims {
            clean(&mut fixture, victim).unwrap();
            assert_eq!(live(&fixture, victim), 0);
        }
        assert_eq!(refused.left(), 0, "a run takes more than it was given");
        // Guests write, and make the cleaner work.
        fixture.guests().mix = Mix { blocks_max: 3, ..Mix::writes(0..480) };
        fixture.run(1500);
        let cleaned = LogState::of(&fixture.log, &fixture.volume).costs.cleaned_segments;
        assert!(cleaned > 10, "{cleaned}");
        drop(refused);
        fixture.check();
        go_on(fixture, 30);
    }
}

/// Without memory for two records nothing is copied, and nothing else goes wrong; the cleaner goes
/// on when there is some.
#[test]
fn a_host_without_memory_for_two_records_is_asked_again() {
    let (mut fixture, victims) = with_victims(1);
    fixture.maintenance.cleaner.release_memory();
    let refused = refusal::give(1);
    for victim in &victims {
        assert_eq!(clean(&mut fixture, *victim), Err(Errno::NOMEM));
        assert!(live(&fixture, *victim) > 0);
    }
    drop(refused);
    fixture.check();
    for victim in victims {
        clean(&mut fixture, victim).unwrap();
        assert_eq!(live(&fixture, victim), 0);
    }
    go_on(fixture, 30);
}

/// The host does not take back what is freed, for a while or for ever. Those segments are free all
/// the same, and are written again.
#[test]
fn a_host_that_does_not_hear_of_dead_segments_loses_none() {
    for (number, errno) in [Errno::IO, Errno::NOSPC, Errno::OPNOTSUPP].into_iter().enumerate() {
        for landed in [Landed::Nothing, Landed::FirstHalf, Landed::Whole] {
            let seed = number as u64;
            let _tell = Tell(format!("{errno:?}, {landed:?}"));
            let mut fixture = Setup { blocks: 1024, ..Setup::default() }.fixture(seed);
            fixture.log.telling.store(true, Ordering::Relaxed);
            let fault = Fault::fail(errno).landed(landed).on(Call::Punch).within(SEGMENTS);
            fixture.disk.inject(fault.always());
            fixture.guests().mix = Mix { blocks_max: 8, ..Mix::writes(0..900) };
            let usable = |fixture: &Fixture| {
                let state = fixture.log.append_state();
                let segments = state.segments();
                (segments.ready_or_obtainable() + segments.used(), segments.limit() - 1)
            };
            // Several times what the image holds.
            for _ in 0..5 {
                fixture.run(800);
                let (all, limit) = usable(&fixture);
                assert_eq!(all, limit, "segments are lost: {}", fixture.describe());
            }
            assert_eq!(fixture.guests().failures, []);
            fixture.flush().unwrap();
            fixture.check();
            let setup = fixture.setup;
            let (disk, model) = fixture.abandon();
            disk.clear_faults();
            for moment in some_moments(&disk, 6) {
                let crashed = disk.crash_at(moment, &mut Fate::seeded(seed));
                drop(recover(&crashed, setup, &model, moment, End::PowerCut, seed));
            }
        }
    }
}
