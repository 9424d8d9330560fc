//! Concurrent requests to one block, or to blocks being cleaned.

use flowstone_sim::Schedule;

use super::crash::Tell;
use super::fixture::{BLOCK_SECTORS, Fixture, Mix, Setup};

fn shuffled(seed: u64) -> Fixture {
    let fixture = Setup::default().fixture(seed);
    fixture.disk.set_schedule(Schedule::Shuffled { seed });
    // Queues opened from now on keep this schedule.
    fixture.reopen().unwrap()
}

#[test]
fn two_parts_of_a_block_written_at_once_both_survive() {
    for seed in 0..30 {
        let _tell = Tell(format!("seed {seed}"));
        let mut fixture = shuffled(seed);
        fixture.write_blocks(0..2).unwrap();
        for round in 0..10 {
            let mut guests = fixture.guests();
            guests.write(0, 0..3);
            guests.write(1, 3..5);
            guests.write(0, 5..8 + round % 3);
            guests.write(1, 12..16);
            if round % 2 == 0 {
                guests.kick(0);
            }
            guests.zero(1, 11..12);
            guests.kick(1);
            drop(guests);
            fixture.drain();
        }
        fixture.check();
        fixture.reopen().unwrap().check();
    }
}

/// A block was unmapped when a part of it was trimmed, so there was nothing to do. By the time the
/// trim was put into a record another part had been written, and the whole block was trimmed.
#[test]
fn a_part_trimmed_of_an_unmapped_block_spares_what_is_written_beside_it() {
    for (trimmed, written) in [(4..8, 0..4), (0..4, 4..8), (4..16, 0..4), (4..20, 20..24)] {
        let mut fixture = Setup::default().fixture(1);
        fixture.write_blocks(1..2).unwrap();
        fixture.guests().zero(0, trimmed);
        // The first queue has not looked at its trim yet.
        fixture.guests().write(1, written);
        while fixture.guests().in_flight() > 1 {
            fixture.guests().kick(1);
            fixture.guests().reap(1);
            fixture.step();
        }
        fixture.drain();
        fixture.check();
    }
}

/// Small changes to a full disk whose segments are cleaned meanwhile.
pub fn parts_and_cleaning(seed: u64) {
    let setup = Setup { queues: 3, split: seed % 2 == 1, ..Setup::default() };
    let mut fixture = setup.fixture(seed);
    fixture.guests().mix = Mix::writes(0..setup.blocks);
    fixture.run(1200);
    fixture.disk.set_schedule(Schedule::Shuffled { seed });
    let mut fixture = fixture.reopen().unwrap();
    fixture.guests().mix = Mix {
        unaligned_percent: 70,
        zero_percent: 20,
        read_percent: 25,
        depth: 20,
        ..Mix::on(setup.blocks)
    };
    let before = fixture.log.append_state().accounting().totals().relocated_blocks;
    fixture.run(1500);
    assert!(fixture.log.append_state().accounting().totals().relocated_blocks > before + 100);
    assert_eq!(fixture.guests().failures, []);
    fixture.check();
    fixture.reopen().unwrap().check();
}

#[test]
fn parts_written_trimmed_and_cleaned_at_once() {
    for seed in 0..3 {
        let _tell = Tell(format!("seed {seed}"));
        parts_and_cleaning(seed);
    }
}

/// A read is in flight to an address that is cleaned, freed and reused.
#[test]
fn a_read_finds_its_block_though_its_place_is_used_again_meanwhile() {
    let mut fixture = shuffled(3);
    let blocks = fixture.setup.blocks;
    fixture.guests().mix = Mix::writes(10..blocks);
    for round in 0..6 {
        fixture.write_blocks(0..8).unwrap();
        let place = fixture.volume.map.get(3).address();
        let (whole, part) = {
            let mut guests = fixture.guests();
            let whole = guests.read(1, 0..8 * BLOCK_SECTORS);
            let part = guests.read(1, 3 * BLOCK_SECTORS + 1..3 * BLOCK_SECTORS + 3);
            guests.kick(1);
            (whole, part)
        };
        let mut tries = 0;
        while fixture.volume.map.get(3).address() == place || !fixture.in_use_again(place) {
            let lba = 10 + fixture.guests().random.u64(..blocks - 18);
            fixture.guests().write(0, lba * BLOCK_SECTORS..(lba + 8) * BLOCK_SECTORS);
            while fixture.guests().in_flight() > 2 {
                fixture.guests().kick(0);
                fixture.guests().nap(0);
                fixture.guests().reap(0);
                fixture.step_alone();
            }
            tries += 1;
            assert!(tries < 5000, "round {round}: the block stays where it is");
        }
        assert!(fixture.guests().is_in_flight(whole) && fixture.guests().is_in_flight(part));
        fixture.drain();
    }
    assert!(fixture.guests().failures.is_empty());
    fixture.check();
}

#[test]
fn a_flush_that_another_queue_serves_ends_the_sleep_of_its_thread() {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use flowstone_block::{Channel, NextLook, Op, QueueContext, QueueDepth, Request};

    use crate::channel::LogChannel;

    const LONG: Duration = flowstone_testkit::HANG;
    let fixture = Setup::default().fixture(1);
    let contexts = [(); 2].map(|()| QueueContext::alone(QueueDepth(8)).unwrap());
    let [mut leader, mut other] = [0, 1].map(|n: usize| {
        let (log, volume) = (Arc::clone(&fixture.log), Arc::clone(&fixture.volume));
        LogChannel::new(log, volume, &contexts[n], false).unwrap()
    });
    for channel in [&mut leader, &mut other] {
        channel.submit(Request::new(Op::Flush, 0));
        channel.kick();
    }
    assert_eq!(other.next_look(), NextLook::OnWake);
    let start = Instant::now();
    contexts[1].reactor.sleep(|| {
        let mut done = Vec::new();
        for _ in 0..3 {
            leader.reap(&mut done);
        }
        assert_eq!(done.len(), 1);
        NextLook::At(start + LONG)
    });
    assert!(start.elapsed() < LONG, "nobody woke it");
    assert_eq!(other.next_look(), NextLook::Now);
    let mut done = Vec::new();
    other.reap(&mut done);
    assert_eq!(done[0].outcome, Ok(()));
}
