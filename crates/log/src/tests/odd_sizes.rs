//! Disks that end inside a block.

use std::path::Path;

use flowstone_block::{BlockingDisk, Op, Sector, SectorCount};
use flowstone_fileio::Access;
use flowstone_image::{DiscardMode, Image};
use flowstone_sim::{Fate, Schedule};

use super::crash::{Tell, go_on, recover, some_moments};
use super::fixture::{BLOCK_SECTORS, Mix, Setup};
use super::history_model::End;
use super::resize::resize_alone;
use crate::disk::LogImage;

fn cut(cut: u64) -> Setup {
    Setup { blocks: 40, cut, ..Setup::default() }
}

#[test]
fn a_disk_that_ends_inside_a_block_survives_power_cuts() {
    for missing in 1..BLOCK_SECTORS {
        let setup = cut(missing);
        let mut fixture = setup.fixture(missing);
        fixture.disk.set_schedule(Schedule::Shuffled { seed: missing });
        // Mostly at the end.
        fixture.guests().mix = Mix { unaligned_percent: 60, region: 30..40, ..Mix::on(40) };
        fixture.run(80);
        fixture.checkpoint().unwrap();
        fixture.run(40);
        fixture.check();
        let mut fixture = fixture.reopen().unwrap();
        fixture.guests().mix = Mix { unaligned_percent: 60, region: 36..40, ..Mix::on(40) };
        fixture.run(60);
        fixture.check();
        let opened = fixture.opened;
        let (disk, model) = fixture.abandon();
        for (index, moment) in some_moments(&disk, 40).filter(|it| *it >= opened).enumerate() {
            let _tell = Tell(format!("{missing} sectors missing, cut at {moment:?}"));
            let crashed = disk.crash_at(moment, &mut Fate::seeded(index as u64));
            let fixture = recover(&crashed, setup, &model, moment, End::PowerCut, 1);
            if index % 9 == 0 {
                go_on(fixture, 20);
            }
        }
    }
}

/// The last block was written, as far as it was on the disk, and waited for its place. Meanwhile
/// the disk grew, and the rest of the block was written: the first write put zeroes there.
#[test]
fn a_write_to_the_old_end_spares_what_is_written_behind_it() {
    for zeroes in [false, true] {
        let _tell = Tell(format!("zeroes: {zeroes}"));
        let setup = cut(5);
        let mut fixture = setup.fixture(1);
        let end = setup.sectors();
        fixture.write(end - 3..end).unwrap();
        fixture.guests().change(0, end - 3..end, zeroes, |_| ()).unwrap();
        let larger = setup.blocks * 2 * BLOCK_SECTORS;
        resize_alone(&mut fixture, larger).unwrap();
        fixture.guests().model.grow(larger);
        // The first queue has not looked at its write yet.
        fixture.guests().write(1, end..end + 5);
        while fixture.guests().in_flight() > 1 {
            fixture.guests().kick(1);
            fixture.guests().nap(1);
            fixture.guests().reap(1);
            fixture.step_alone();
        }
        fixture.drain();
        fixture.check();
        fixture.reopen().unwrap().check();
    }
}

/// The new part of a grown disk reads as zeroes, whatever was in the block in which it ended.
#[test]
fn a_disk_grows_by_zeroes() {
    for missing in 1..BLOCK_SECTORS {
        let setup = cut(missing);
        let mut fixture = setup.fixture(1);
        let end = setup.sectors();
        fixture.write(end - 2..end).unwrap();
        fixture.write(end - 1..end).unwrap();
        fixture.write((setup.blocks - 1) * BLOCK_SECTORS..end).unwrap();
        let larger = setup.sectors() + 1;
        resize_alone(&mut fixture, larger).unwrap();
        fixture.guests().model.grow(larger);
        fixture.check();
        fixture.write(end..larger).unwrap();
        fixture.check();
        fixture.reopen().unwrap().check();
    }
}

/// Data cut off the last block came back when the disk grew again.
#[test]
fn a_disk_is_not_made_smaller_inside_a_block_that_holds_something() {
    let disk = cut(0).image();
    let file = Box::new(disk.clone());
    let mode = DiscardMode::Deallocate;
    let image = LogImage::open(Path::new("image"), file, mode, Access::Write, None, None).unwrap();
    let mut guest = BlockingDisk::new(&image).unwrap();
    let sectors = cut(0).sectors();
    guest.write(Sector::new(sectors - 8), &mut [7; 4096]).unwrap();
    assert!(image.resize(SectorCount::new(sectors - 4)).is_err(), "data was cut off");
    let tail = super::fixture::extent(&(sectors - 4..sectors));
    guest.run(Op::WriteZeroes { extent: tail, unmap: false }).unwrap();
    image.resize(SectorCount::new(sectors - 4)).unwrap();
    image.resize(SectorCount::new(sectors)).unwrap();
    let mut bytes = [1; 4096];
    guest.read(Sector::new(sectors - 8), &mut bytes).unwrap();
    assert!(bytes[..2048] == [7; 2048] && bytes[2048..] == [0; 2048]);
}
