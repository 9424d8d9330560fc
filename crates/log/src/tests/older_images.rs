//! Images of before 30 Nov 2026, whose limit of segments is above what their reserve gives today:
//! spare segments and room for two maps came on top of it.

use flowstone_fileio::FileIo;
use flowstone_log_format::Kind;
use flowstone_log_store::segments::State;
use flowstone_sim::{Fate, SimDisk};

use super::crash::{Tell, recover};
use super::damage::{Found, look};
use super::fixture::{BLOCK_SECTORS, Fixture, Mix, SEGMENT_BYTES, Setup};
use super::history_model::{End, HistoryModel};
use super::resize::resize_alone;
use crate::corrupter::Corrupter;

/// Segments beyond today's limit.
const BEYOND: u32 = 9;

/// Returns an empty image, and the limit that it would have today.
fn older(setup: Setup, seed: u64) -> (Fixture, u32) {
    let mut fixture = setup.fixture(seed);
    let own = fixture.log.append_state().segments().limit();
    fixture.log.set_limit(own + BEYOND);
    fixture.maintenance.writer.superblock.segments = own + BEYOND;
    fixture.checkpoint().unwrap();
    (fixture, own)
}

#[test]
fn a_full_one_goes_on() {
    for seed in 0..4 {
        let _tell = Tell(format!("seed {seed}"));
        let setup = Setup { split: seed % 2 == 1, ..Setup::default() };
        let (mut fixture, own) = older(setup, seed);
        fixture.write_blocks(0..setup.blocks).unwrap();
        fixture.guests().mix = Mix::writes(0..setup.blocks);
        fixture.run(1000);
        assert!(fixture.log.append_state().segments().highest_used().get() >= own);
        let mut fixture = if seed < 2 {
            fixture.reopen().unwrap()
        } else {
            let (disk, model) = fixture.abandon();
            let now = disk.now();
            let crashed = disk.crash_at(now, &mut Fate::everything());
            recover(&crashed, setup, &model, now, End::PowerCut, seed)
        };
        assert_eq!(fixture.log.append_state().segments().limit(), own + BEYOND);
        fixture.guests().mix = Mix { depth: 16, ..Mix::writes(0..setup.blocks) };
        fixture.run(1000);
        fixture.guests().mix = Mix::on(setup.blocks);
        fixture.run(200);
        let capacity = (setup.blocks + 1) * BLOCK_SECTORS;
        resize_alone(&mut fixture, capacity).unwrap();
        assert_eq!(fixture.log.append_state().segments().limit(), own + BEYOND);
        fixture.guests().model.grow(capacity);
        fixture.guests().mix = Mix::writes(0..setup.blocks);
        fixture.run(1000);
        assert_eq!(fixture.guests().failures, []);
    }
}

/// The search for what a damaged seal led to ended at today's limit: the image was opened with old
/// data.
#[test]
fn a_damaged_seal_that_led_beyond_the_limit_of_today_is_missed() {
    let mut tried = 0;
    for seed in 0..6 {
        let _tell = Tell(format!("seed {seed}"));
        let setup = Setup { blocks: 4096, reserve: Some(20), ..Setup::default() };
        let (mut fixture, own) = older(setup, seed);
        fixture.write_blocks(0..setup.blocks).unwrap();
        let head =
            |fixture: &Fixture| fixture.log.append_state().committed_heads()[0].segment.get();
        let mut at = 0;
        for lba in (0..).map(|turn| turn * 7919 % (setup.blocks - 1)).take(20_000) {
            let before = std::mem::replace(&mut at, head(&fixture));
            if at != before && at >= own {
                break;
            } else if at != before {
                fixture.checkpoint().unwrap();
            }
            fixture.write_blocks(lba..lba + 1).unwrap();
        }
        fixture.flush().unwrap();
        // States that all before is durable.
        fixture.write_blocks(setup.blocks - 1..setup.blocks).unwrap();
        let (disk, model) = fixture.abandon();
        let replayed = Corrupter::new(disk.to_bytes()).replayed();
        let leads_there = |it: &u64| *it == u64::from(at);
        let seal =
            replayed.iter().find(|(_, it, _)| it.kind == Kind::Seal && leads_there(&it.link));
        let Some((seal, ..)) = seal.filter(|_| at >= own) else { continue };
        let disk = SimDisk::from_bytes(&disk.to_bytes());
        disk.flip_bit(seal.offset().get() + 20, 1);
        assert_eq!(look(&disk, setup, &model.latest()), Found::Refused);
        tried += 1;
    }
    assert!(tried > 0);
}

/// The space of segments beyond today's limit that were ready when the daemon was killed.
#[test]
fn space_beyond_the_limit_of_today_is_given_back() {
    let setup = Setup { blocks: 4096, reserve: Some(20), ..Setup::default() };
    let (mut fixture, own) = older(setup, 1);
    fixture.write_blocks(0..setup.blocks).unwrap();
    fixture.guests().mix = Mix::writes(0..setup.blocks);
    fixture.run(3000);
    fixture.zero(0..setup.sectors()).unwrap();
    fixture.checkpoint().unwrap();
    fixture.checkpoint().unwrap();
    let is_beyond = |fixture: &Fixture| {
        let state = fixture.log.append_state();
        state.segments().iter().any(|(at, it)| at.get() >= own && it.state == State::Ready)
    };
    assert!(is_beyond(&fixture));
    let (disk, model) = fixture.abandon();
    let model = HistoryModel::new(model.latest(), 1 << 40);
    let fixture = Fixture::open(&disk, setup, model, 1).unwrap();
    let used = u64::from(fixture.log.append_state().segments().used());
    let (disk, _) = fixture.close();
    assert!(disk.allocated_bytes().unwrap() <= (used + 2) * SEGMENT_BYTES);
}
