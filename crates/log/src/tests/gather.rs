//! Tests of how waiting requests share records: by class, in the order of overlapping writes, and
//! several large records at once.

use flowstone_block::Class;
use flowstone_sim::{Fate, Schedule};

use super::crash::{Tell, look, some_moments, three_fates};
use super::fixture::{BLOCK_SECTORS, Fixture, Guests, Setup};
use super::history_model::Stamp;

const SPLIT: Setup =
    Setup { blocks: 512, cut: 0, split: true, queues: 1, segment_bytes: 1 << 20, reserve: None };

/// Writes blocks with one queue, in requests of alternating classes, all before the queue looks.
fn write_in_turn(fixture: &Fixture, requests: &[std::ops::Range<u64>]) {
    write_in_turn_as(fixture, [Class::Metadata, Class::Data], requests);
}

fn write_in_turn_as(fixture: &Fixture, classes: [Class; 2], requests: &[std::ops::Range<u64>]) {
    let mut guests = fixture.guests();
    for (number, blocks) in requests.iter().enumerate() {
        let sectors = blocks.start * BLOCK_SECTORS..blocks.end * BLOCK_SECTORS;
        let class = classes[number % 2];
        guests.change_anyway(0, sectors, false, |request| request.class = class);
    }
    guests.kick(0);
}

fn records(fixture: &Fixture) -> u64 {
    let state = fixture.log.append_state();
    state.next_sequence().since(state.committed())
}

#[test]
fn a_batch_of_two_classes_is_two_records() {
    let mut fixture = SPLIT.fixture(1);
    // The first records of a stream open its segment.
    write_in_turn(&fixture, &[0..1, 1..2]);
    fixture.drain();
    let requests: Vec<_> = (0..20).map(|number| number * 2..number * 2 + 1).collect();
    write_in_turn(&fixture, &requests);
    assert_eq!(records(&fixture), 2);
    fixture.drain();
    fixture.check();
}

/// A record is kept out of the page cache as a whole or not at all.
#[test]
fn a_journal_has_records_of_its_own_in_either_stream() {
    for (split, other) in [(false, Class::Data), (true, Class::Metadata)] {
        let mut fixture = Setup { split, ..SPLIT }.fixture(3);
        write_in_turn(&fixture, &[0..1, 1..2]);
        fixture.drain();
        let requests: Vec<_> = (0..20).map(|number| number * 2..number * 2 + 1).collect();
        write_in_turn_as(&fixture, [Class::Journal, other], &requests);
        assert_eq!(records(&fixture), 2);
        fixture.drain();
        fixture.check();
    }
}

#[test]
fn a_batch_of_one_class_is_one_record() {
    let mut fixture = SPLIT.fixture(2);
    write_in_turn(&fixture, &[0..1, 1..2]);
    fixture.drain();
    let mut guests = fixture.guests();
    for block in 0..20 {
        guests.write(0, block * BLOCK_SECTORS..(block + 1) * BLOCK_SECTORS);
    }
    guests.kick(0);
    drop(guests);
    assert_eq!(records(&fixture), 1);
    fixture.drain();
}

/// Overlapping writes of one queue, of both classes: the last one wins, now and after a power cut.
fn overlapping(seed: u64) {
    let mut fixture = SPLIT.fixture(seed);
    let mut random = fastrand::Rng::with_seed(seed);
    let mut expected: Vec<Stamp> = fixture.contents();
    for _ in 0..30 {
        let count = random.usize(2..12);
        let any = |_| {
            let start = random.u64(0..12);
            start..start + random.u64(1..6)
        };
        let requests: Vec<_> = (0..count).map(any).collect();
        let first = fixture.guests().model.next_stamp();
        write_in_turn(&fixture, &requests);
        for (stamp, blocks) in (first..).zip(requests) {
            let sectors = (blocks.start * BLOCK_SECTORS) as usize;
            expected[sectors..(blocks.end * BLOCK_SECTORS) as usize].fill(stamp);
        }
        fixture.drain();
        assert_eq!(fixture.contents(), expected);
    }
    fixture.flush().unwrap();
    let crashed = fixture.disk.crash_at(fixture.disk.now(), &mut Fate::nothing_more());
    assert_eq!(super::fixture::contents_read_only(&crashed).unwrap(), expected);
}

#[test]
fn overlapping_writes_of_two_classes_keep_their_order() {
    for seed in 0..8 {
        let _tell = Tell(format!("seed {seed}"));
        overlapping(seed);
    }
}

/// Submits a large or small change, of at most a sixteenth of the disk, unless it overlaps one in
/// flight.
fn submit_any(guests: &mut Guests) {
    let queue = guests.random.usize(..2);
    if guests.random.u8(..12) == 0 {
        guests.flush(queue);
        return;
    }
    let count = if guests.random.bool() { guests.random.u64(16..=32) } else { 1 };
    let first = guests.random.u64(..SPLIT.blocks - count);
    let class = if guests.random.bool() { Class::Metadata } else { Class::Data };
    let sectors = first * BLOCK_SECTORS..(first + count) * BLOCK_SECTORS;
    guests.change(queue, sectors, false, |request| request.class = class);
    guests.kick(queue);
}

/// Large and small requests of both classes on two queues, many records in flight, completing in
/// any order; power is cut.
pub fn many_records(seed: u64, moments: usize) {
    let setup = Setup { queues: 2, split: seed % 2 == 1, ..SPLIT };
    let fixture = setup.fixture(seed);
    fixture.disk.set_schedule(Schedule::Shuffled { seed });
    let mut fixture = fixture.reopen().unwrap();
    let mut most = 0;
    for number in 0..100 {
        submit_any(&mut fixture.guests());
        most = most.max(records(&fixture));
        match number % 8 {
            0 => drop(fixture.step()),
            _ => (0..3).for_each(|_| fixture.guests().turn()),
        }
    }
    assert!(most > 4, "{most} records at once");
    let (disk, model) = fixture.abandon();
    for (index, moment) in some_moments(&disk, moments).enumerate() {
        for fate in three_fates(index) {
            let _tell = Tell(format!("seed {seed}, {fate:?} at {moment:?}"));
            look(&disk.crash_at(moment, &mut fate.clone()), &model, moment);
        }
    }
}

#[test]
fn many_large_records_on_their_way_survive_power_cuts() {
    for seed in 0..4 {
        many_records(seed, 60);
    }
}

/// Returns the write amplification of the last passes over a disk where half of the writes,
/// metadata, go to a twentieth of it, 16 at once.
fn amplification(split: bool, reserve: u32) -> f64 {
    let setup = Setup {
        blocks: 8192,
        split,
        queues: 1,
        segment_bytes: 512 << 10,
        reserve: Some(reserve),
        ..Setup::default()
    };
    let mut fixture = setup.fixture(1);
    let mut random = fastrand::Rng::with_seed(1);
    let (mut before, mut after) = ((0, 0), (0, 0));
    for pass in 0..8 {
        for _ in 0..setup.blocks / 16 {
            let mut guests = fixture.guests();
            for _ in 0..16 {
                let metadata = random.bool();
                let lba = match metadata {
                    true => random.u64(0..setup.blocks / 20),
                    false => random.u64(setup.blocks / 20..setup.blocks),
                };
                let class = if metadata { Class::Metadata } else { Class::Data };
                let sectors = lba * BLOCK_SECTORS..(lba + 1) * BLOCK_SECTORS;
                guests.change_anyway(0, sectors, false, |request| request.class = class);
            }
            guests.kick(0);
            drop(guests);
            fixture.drain();
        }
        let state = fixture.log.append_state();
        after = (state.accounting().totals().appended_blocks, state.accounting().clock());
        drop(state);
        if pass == 3 {
            before = after;
        }
        let (disk, model) = fixture.close();
        let model = super::history_model::HistoryModel::new(model.latest(), model.next_stamp());
        let disk = super::fixture::without_history(&disk);
        fixture = Fixture::open(&disk, setup, model, pass).unwrap();
    }
    (after.0 - before.0) as f64 / (after.1 - before.1) as f64
}

#[test]
#[ignore = "prints a table for docs/benchmarks.md, in a minute"]
fn measure_one_stream_and_two() {
    for reserve in [20, 30] {
        let [one, two] = [false, true].map(|split| amplification(split, reserve));
        println!("reserve {reserve} %: one stream {one:.2}, two {two:.2}");
    }
}
