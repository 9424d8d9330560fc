//! Disks that end inside a block.

use std::path::Path;

use flowstone_block::{BlockingDisk, Op, Sector, SectorCount};
use flowstone_fileio::Access;
use flowstone_sim::{Fate, Schedule};

use super::crash::{Tell, go_on, recover, some_moments};
use super::driver::{BLOCK_SECTORS, Mix, Setup};
use super::oracle::End;
use super::resize::resize_alone;
use crate::log::disk::LogImage;
use crate::{DiscardMode, Image};

fn cut(cut: u64) -> Setup {
    Setup { blocks: 40, cut, ..Setup::default() }
}

#[test]
fn a_disk_that_ends_inside_a_block_survives_power_cuts() {
    for missing in 1..BLOCK_SECTORS {
        let setup = cut(missing);
        let mut rig = setup.rig(missing);
        rig.disk.set_schedule(Schedule::Shuffled { seed: missing });
        // Mostly at the end.
        rig.guests().mix = Mix { unaligned_percent: 60, region: 30..40, ..Mix::on(40) };
        rig.run(80);
        rig.checkpoint().unwrap();
        rig.run(40);
        rig.check();
        let mut rig = rig.reopen().unwrap();
        rig.guests().mix = Mix { unaligned_percent: 60, region: 36..40, ..Mix::on(40) };
        rig.run(60);
        rig.check();
        let opened = rig.opened;
        let (disk, story) = rig.abandon();
        for (index, moment) in some_moments(&disk, 40).filter(|it| *it >= opened).enumerate() {
            let _tell = Tell(format!("{missing} sectors missing, cut at {moment:?}"));
            let crashed = disk.crash_at(moment, &mut Fate::seeded(index as u64));
            let rig = recover(&crashed, setup, &story, moment, End::PowerCut, 1);
            if index % 9 == 0 {
                go_on(rig, 20);
            }
        }
    }
}

/// The last block, as far as the disk had it, was written and waited for its place. Meanwhile the
/// disk grew, and the rest of the block was written: the first write put zeroes there.
#[test]
fn a_write_to_the_old_end_spares_what_is_written_behind_it() {
    for zeroes in [false, true] {
        let _tell = Tell(format!("zeroes: {zeroes}"));
        let setup = cut(5);
        let mut rig = setup.rig(1);
        let end = setup.sectors();
        rig.write(end - 3..end).unwrap();
        rig.guests().change(0, end - 3..end, zeroes, |_| ()).unwrap();
        let larger = setup.blocks * 2 * BLOCK_SECTORS;
        resize_alone(&mut rig, larger).unwrap();
        rig.guests().story.grow(larger);
        // The first queue has not looked at its write yet.
        rig.guests().write(1, end..end + 5);
        while rig.guests().in_flight() > 1 {
            rig.guests().kick(1);
            rig.guests().nap(1);
            rig.guests().reap(1);
            rig.step_alone();
        }
        rig.settle();
        rig.check();
        rig.reopen().unwrap().check();
    }
}

/// What the disk grows by reads as zeroes, whatever was in the block that it ended in.
#[test]
fn a_disk_grows_by_zeroes() {
    for missing in 1..BLOCK_SECTORS {
        let setup = cut(missing);
        let mut rig = setup.rig(1);
        let end = setup.sectors();
        rig.write(end - 2..end).unwrap();
        rig.write(end - 1..end).unwrap();
        rig.write((setup.blocks - 1) * BLOCK_SECTORS..end).unwrap();
        let larger = setup.sectors() + 1;
        resize_alone(&mut rig, larger).unwrap();
        rig.guests().story.grow(larger);
        rig.check();
        rig.write(end..larger).unwrap();
        rig.check();
        rig.reopen().unwrap().check();
    }
}

/// The end that was cut off a block came back when the disk grew again.
#[test]
fn a_disk_is_not_made_smaller_inside_a_block_that_holds_something() {
    let disk = cut(0).image();
    let file = Box::new(disk.clone());
    let mode = DiscardMode::Deallocate;
    let image = LogImage::open(Path::new("image"), file, mode, Access::Write).unwrap();
    let mut guest = BlockingDisk::new(&image).unwrap();
    let sectors = cut(0).sectors();
    guest.write(Sector::new(sectors - 8), &mut [7; 4096]).unwrap();
    assert!(image.resize(SectorCount::new(sectors - 4)).is_err(), "data was cut off");
    let tail = super::driver::extent(&(sectors - 4..sectors));
    guest.run(Op::WriteZeroes { extent: tail, unmap: false }).unwrap();
    image.resize(SectorCount::new(sectors - 4)).unwrap();
    image.resize(SectorCount::new(sectors)).unwrap();
    let mut bytes = [1; 4096];
    guest.read(Sector::new(sectors - 8), &mut bytes).unwrap();
    assert!(bytes[..2048] == [7; 2048] && bytes[2048..] == [0; 2048]);
}
