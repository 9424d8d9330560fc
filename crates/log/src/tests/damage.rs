//! The medium rots, loses writes, or misdirects them: an explicit error, or a refused image, and
//! never wrong data.

use flowstone_fileio::FileOffset;
use flowstone_log_format::{Kind, SLOTS, SegmentId, Sequence};
use flowstone_log_store::segments::State;
use flowstone_sim::{Call, Fate, Fault, SimDisk};

use super::crash::Tell;
use super::fixture::{
    BLOCK_SECTORS, Fixture, Mix, SEGMENT_BYTES, Setup, readable_contents, without_history,
};
use super::history_model::{HistoryModel, Stamp};
use crate::load::load;
use crate::session::load_for;

/// Result of opening a damaged image.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    Refused,
    /// Blocks that cannot be read.
    Lacks(Vec<u64>),
}

/// Opens a damaged image both ways. All readable content must be `expected`.
pub fn look(disk: &SimDisk, setup: Setup, expected: &[Stamp]) -> Found {
    let reader = load_for("image".into(), Box::new(disk.clone()), true, None, None);
    let read_only = match &reader {
        Err(_) => Found::Refused,
        Ok((log, volume, _)) => lacking(&readable_contents(log, volume), expected),
    };
    let model = HistoryModel::new(expected.to_vec(), 1 << 32);
    let writable = match Fixture::open(disk, setup, model, 1) {
        Err(_) => Found::Refused,
        Ok(fixture) => lacking(&readable_contents(&fixture.log, &fixture.volume), expected),
    };
    assert_eq!(read_only, writable, "reader and writer");
    writable
}

fn lacking(found: &[Option<Vec<Stamp>>], expected: &[Stamp]) -> Found {
    let unpromised = found.len() as u64 - 1;
    let mut lacks = Vec::new();
    for (lba, (found, expected)) in
        (0..).zip(found.iter().zip(expected.chunks(BLOCK_SECTORS as usize)))
    {
        match found {
            Some(_) if lba == unpromised => {}
            Some(found) => assert_eq!(found, expected, "block {lba}"),
            None => lacks.push(lba),
        }
    }
    Found::Lacks(lacks)
}

/// An image with a checkpoint, records after it and copies, all flushed; and one more record, for
/// the last block, that states so. That one is not flushed itself.
fn crashed(setup: Setup, seed: u64) -> (SimDisk, Vec<Stamp>) {
    crashed_after(setup, seed, 150)
}

fn crashed_after(setup: Setup, seed: u64, requests: u32) -> (SimDisk, Vec<Stamp>) {
    let mut fixture = setup.fixture(seed);
    fixture.guests().mix = Mix::writes(0..setup.blocks);
    fixture.run(800);
    fixture.checkpoint().unwrap();
    fixture.guests().mix = Mix::on(setup.blocks - 16);
    fixture.run(requests);
    fixture.write_blocks(setup.blocks - 2..setup.blocks - 1).unwrap();
    fixture.flush().unwrap();
    fixture.write_blocks(setup.blocks - 1..setup.blocks).unwrap();
    fixture.check();
    let (disk, model) = fixture.abandon();
    (without_history(&disk), model.latest())
}

/// Flips a bit in one of every few blocks of an image left by a crash or by a clean close.
pub fn flipped_bits(seed: u64) {
    let setup = Setup { split: seed % 2 == 1, ..Setup::default() };
    let (disk, expected) = crashed(setup, seed);
    let bytes = disk.to_bytes();
    assert_eq!(look(&disk, setup, &expected), Found::Lacks(vec![]));
    let model = HistoryModel::new(expected.clone(), 1 << 32);
    let fixture = Fixture::open(&SimDisk::from_bytes(&bytes), setup, model, 1).unwrap();
    let clean = fixture.close().0.to_bytes();
    let mut random = fastrand::Rng::with_seed(seed);
    for bytes in [&bytes, &clean] {
        let blocks = bytes.chunks(4096).enumerate();
        let used = blocks.filter(|(_, block)| **block != [0; 4096]).map(|(number, _)| number);
        for some in used.collect::<Vec<_>>().chunks(16) {
            let within = if random.bool() { 80 } else { 4096 };
            let at = random.choice(some).unwrap() * 4096 + random.usize(..within);
            let _tell = Tell(format!("seed {seed}: a bit at {at}"));
            let disk = SimDisk::from_bytes(bytes);
            disk.flip_bit(at as u64, random.u8(..8));
            look(&disk, setup, &expected);
        }
    }
}

#[test]
fn a_flipped_bit_anywhere_never_leads_to_wrong_data() {
    for seed in 0..2 {
        flipped_bits(seed);
    }
}

/// Records after the checkpoint, in several segments, all of them durable by the last one.
#[test]
fn damage_to_records_that_were_promised_is_no_end_of_the_log() {
    let setup = Setup { split: true, ..Setup::default() };
    let mut fixture = setup.fixture(1);
    fixture.write_blocks(0..20).unwrap();
    fixture.checkpoint().unwrap();
    fixture.guests().mix = Mix { zero_percent: 10, depth: 4, ..Mix::writes(20..250) };
    fixture.run(60);
    fixture.flush().unwrap();
    fixture.write_blocks(255..256).unwrap();
    let last = fixture.volume.map.get(255).address().get();
    let heads: Vec<u32> =
        fixture.log.append_state().heads().iter().map(|head| head.place.segment.get()).collect();
    let (disk, model) = fixture.abandon();
    let bytes = disk.to_bytes();
    let expected = model.latest();
    let (mut refused, mut sealed) = (0, 0);
    for (block, content) in (0..).zip(bytes.chunks(4096)) {
        let is_header = content.starts_with(b"FLRC") && content[44] <= 2;
        if !is_header || block + 1 == last {
            continue;
        }
        let _tell = Tell(format!("header in block {block}"));
        let disk = SimDisk::from_bytes(&bytes);
        disk.flip_bit(u64::from(block) * 4096 + 20, 1);
        if look(&disk, setup, &expected) == Found::Refused {
            refused += 1;
            sealed += u32::from(!heads.contains(&(block / 64)));
        }
    }
    assert!(refused > 20 && sealed > 3, "{refused} {sealed}");
}

/// The segment that a damaged seal led to may have had an earlier use, named by the map root: it
/// was freed and reused without a checkpoint in between.
#[test]
fn a_seal_is_missed_even_if_it_led_to_a_segment_that_the_map_root_names() {
    let mut named = 0;
    for seed in 0..40 {
        let setup = Setup { blocks: 512, reserve: Some(40), ..Setup::default() };
        let (disk, expected) = crashed_after(setup, seed, 700 + seed as u32 * 31);
        let bytes = disk.to_bytes();
        let loaded = load(&disk, None).unwrap();
        // The last record is not known to be durable, nor is a seal that was written for it.
        let promised =
            loaded.superblock.next_sequence..Sequence::new(loaded.replay.next_sequence.get() - 2);
        let mut entries = Vec::new();
        let seals = bytes.chunks(4096).enumerate().filter_map(|(block, content)| {
            let header = loaded.codec.decode(content, &mut entries)?;
            let segment = loaded.segments.get(SegmentId::new(block as u32 / 64));
            let replayed = segment.incarnation == header.incarnation && segment.lifetime == 0;
            (header.kind == Kind::Seal && replayed).then_some((block, header))
        });
        // Behind the last seal, only one segment can prove the loss.
        let seals = seals.filter(|(_, header)| promised.contains(&header.sequence));
        let Some((block, header)) = seals.max_by_key(|(_, header)| header.sequence) else {
            continue;
        };
        let _tell = Tell(format!("seed {seed}: seal {} in block {block}", header.sequence));
        let disk = SimDisk::from_bytes(&bytes);
        disk.flip_bit(block as u64 * 4096 + 20, 1);
        let behind = load(&disk, None).unwrap().segments.get(SegmentId::new(header.link as u32));
        named += u32::from(behind.state != State::Free);
        assert_eq!(look(&disk, setup, &expected), Found::Refused);
    }
    assert!(named > 0, "no seal led to a segment that the map root names");
}

#[test]
fn damaged_superblocks_are_refused_or_do_not_matter() {
    let setup = Setup::default();
    for rounds in 0..6 {
        let mut fixture = setup.fixture(rounds);
        fixture.guests().mix = Mix::writes(0..setup.blocks);
        // Segments are freed and used again between checkpoints.
        fixture.run(700);
        for _ in 0..rounds % 3 {
            fixture.checkpoint().unwrap();
            fixture.run(30);
        }
        fixture.flush().unwrap();
        let closed = rounds >= 3;
        let (disk, model) = if closed { fixture.close() } else { fixture.abandon() };
        for slot in SLOTS {
            let _tell = Tell(format!("{rounds} rounds, slot {slot:?}"));
            let damaged = without_history(&disk);
            damaged.flip_bit(slot.offset().get() + 100, 3);
            let found = look(&damaged, setup, &model.latest());
            assert!(matches!(found, Found::Refused) || found == Found::Lacks(vec![]), "{found:?}");
        }
        let damaged = without_history(&disk);
        SLOTS.iter().for_each(|slot| damaged.flip_bit(slot.offset().get() + 100, 3));
        assert_eq!(look(&damaged, setup, &model.latest()), Found::Refused);
    }
}

/// A write of a record, a copy or a map is lost, or lands at another address.
pub fn misled_write(seed: u64) {
    let setup = Setup::default();
    let mut fixture = setup.fixture(seed);
    fixture.guests().mix = Mix { flush_percent: 20, ..Mix::writes(0..200) };
    fixture.run(300);
    let target = FileOffset::new((1 + seed % 9) * SEGMENT_BYTES + seed % 50 * 4096);
    let fault = if seed.is_multiple_of(2) { Fault::lose() } else { Fault::misdirect(target) };
    let region = SEGMENT_BYTES..u64::MAX;
    fixture.disk.inject(fault.on(Call::Write).within(region).after(seed % 7));
    fixture.run(40);
    fixture.flush().unwrap();
    for _ in 0..2 {
        fixture.write_blocks(250..251).unwrap();
        fixture.flush().unwrap();
    }
    let (disk, model) = fixture.abandon();
    let crashed = disk.crash_at(disk.now(), &mut Fate::nothing_more());
    // All content found is right; the rest is refused or reported.
    look(&crashed, setup, &model.latest());
}

#[test]
fn lost_and_misdirected_writes_are_found() {
    for seed in 0..30 {
        let _tell = Tell(format!("seed {seed}"));
        misled_write(seed);
    }
}

/// The newest superblock was written and is lost: the one before it is valid, and does not know
/// which segments have been reused.
#[test]
fn a_newest_superblock_that_the_medium_has_lost_is_missed() {
    for seed in 0..4 {
        let setup = Setup { split: seed % 2 == 1, ..Setup::default() };
        let mut fixture = setup.fixture(seed);
        fixture.guests().mix = Mix::writes(0..setup.blocks);
        fixture.run(300);
        fixture.checkpoint().unwrap();
        fixture.run(50);
        fixture.disk.inject(Fault::lose().on(Call::Write).within(0..SEGMENT_BYTES));
        fixture.checkpoint().unwrap();
        fixture.write_blocks(0..4).unwrap();
        fixture.flush().unwrap();
        let (disk, model) = fixture.abandon();
        let crashed = disk.crash_at(disk.now(), &mut Fate::everything());
        assert_eq!(look(&crashed, setup, &model.latest()), Found::Refused);
    }
}
