//! Tests of an image that changes its streams when opened: with power cuts, on a full disk and on a
//! full host.

use flowstone_block::ErrorKind;
use flowstone_fileio::FileIo;
use flowstone_log_format::SegmentId;
use flowstone_log_store::segments::State;
use flowstone_sim::{Call, Fault, Moment, Schedule, SimDisk};

use super::crash::{Tell, crash_everywhere, three_fates};
use super::fixture::{Fixture, Mix, SEGMENT_BYTES, Setup, begin, without_history};
use super::history_model::HistoryModel;
use crate::session::load_for;
use crate::slots::read_superblock;
use crate::streams::Streams;

const BOTH: [Streams; 2] = [Streams::One, Streams::Class];

const fn with(setup: Setup, streams: Streams) -> Setup {
    Setup { split: matches!(streams, Streams::Class), ..setup }
}

fn streams_of(disk: &SimDisk) -> u32 {
    read_superblock(disk).unwrap().streams
}

/// An image in use, closed or abandoned, with writes in all of its streams.
fn used(setup: Setup, seed: u64, is_closed: bool) -> (SimDisk, HistoryModel) {
    let mut fixture = setup.fixture(seed);
    fixture.guests().mix = Mix { flush_percent: 12, ..Mix::on(40) };
    fixture.run(60);
    if is_closed { fixture.close() } else { fixture.abandon() }
}

/// Power is cut at every moment of the change, after a clean close and without one.
#[test]
fn a_change_of_streams_survives_every_power_cut() {
    for seed in 0..8 {
        let _tell = Tell(format!("seed {seed}"));
        let [from, to] = if seed % 2 == 0 { BOTH } else { [BOTH[1], BOTH[0]] };
        let setup = with(Setup { blocks: 64, ..Setup::default() }, from);
        let (disk, model) = used(setup, seed, seed % 4 < 2);
        let before = disk.now();
        disk.set_schedule(Schedule::Shuffled { seed });
        let mut fixture = Fixture::open(&disk, with(setup, to), model, seed).unwrap();
        assert_eq!(streams_of(&disk), to.count());
        fixture.audit();
        fixture.run(20);
        let (disk, model) = fixture.abandon();
        let later: Vec<Moment> = disk.crash_points().filter(|it| *it >= before).collect();
        for streams in BOTH {
            let moments = later.iter().copied();
            let setup = with(setup, streams);
            let fates = |index| vec![three_fates(index).swap_remove((index + seed as usize) % 3)];
            crash_everywhere(&disk, setup, &model, moments, fates);
        }
    }
}

/// The segment of a removed stream must not stay open: it would never be cleaned.
#[test]
fn the_segment_of_a_stream_that_is_gone_is_cleaned_like_others() {
    let setup = with(Setup::default(), Streams::Class);
    let (disk, model) = used(setup, 1, true);
    let fixture = Fixture::open(&disk, with(setup, Streams::One), model, 1).unwrap();
    let open: Vec<(SegmentId, u8)> = {
        let state = fixture.log.append_state();
        let open = state.segments().iter().filter(|(_, it)| it.state == State::Open);
        open.map(|(number, it)| (number, it.lifetime)).collect()
    };
    assert!(open.iter().all(|(_, lifetime)| *lifetime != 1), "{open:?}");
}

/// A fully used disk gets another stream, loses it, and gets it again; writes always find room.
#[test]
fn a_full_disk_is_written_on_with_other_streams() {
    for seed in 0..2 {
        let _tell = Tell(format!("seed {seed}"));
        let setup = Setup { reserve: Some(3), ..Setup::default() };
        let mut fixture = setup.fixture(seed);
        fixture.write_blocks(0..setup.blocks).unwrap();
        for round in 0..6 {
            let (disk, model) = fixture.close();
            let model = HistoryModel::new(model.latest(), model.next_stamp());
            let disk = without_history(&disk);
            let setup = with(setup, BOTH[(round + 1) % 2]);
            fixture = Fixture::open(&disk, setup, model, seed).unwrap();
            let all = 0..setup.blocks;
            fixture.guests().mix = Mix { depth: 16, ..Mix::writes(all) };
            fixture.run(1500);
            assert_eq!(fixture.guests().failures, [], "round {round}");
            fixture.check();
        }
        let limit = u64::from(fixture.log.append_state().segments().limit()) * SEGMENT_BYTES;
        assert!(fixture.disk.allocated_bytes().unwrap() <= limit);
    }
}

/// The image stays as it was, and the refusal says how much space the change takes.
#[test]
fn a_full_host_refuses_another_stream_and_nothing_is_lost() {
    let setup = with(Setup::default(), Streams::One);
    let (disk, model) = used(setup, 3, true);
    let before = read_superblock(&disk).unwrap();
    disk.inject(Fault::fail(flowstone_block::Errno::NOSPC).on(Call::Allocate).always());
    let file = Box::new(disk.clone());
    let refused = begin(file, Some(Streams::Class)).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
    let bytes = 3 * SEGMENT_BYTES;
    assert!(refused.to_string().contains(&format!("free {bytes} bytes")), "{refused}");
    assert_eq!(read_superblock(&disk).unwrap(), before);
    let model = HistoryModel::new(model.latest(), model.next_stamp());
    Fixture::open(&disk, setup, model, 3).unwrap().check();
}

#[test]
fn a_reader_changes_no_streams() {
    let (disk, _) = used(with(Setup::default(), Streams::One), 4, true);
    let open =
        |streams| load_for("image".into(), Box::new(disk.clone()), true, Some(streams), None);
    let refused = open(Streams::Class).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert!(open(Streams::One).is_ok());
    assert_eq!(streams_of(&disk), 1);
}
