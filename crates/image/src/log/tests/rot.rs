//! Parts of blocks written onto data that has rotted: an error, unless nothing of it is kept.

use std::ops::Range;
use std::sync::Arc;

use flowstone_block::{Errno, QueueDepth};

use super::driver::{BLOCK_SECTORS, Rig, Setup, read_now};
use crate::log::channel::LogChannel;
use crate::log::keeper::Keeper;

/// An image in whose block 3 a bit has turned while it was closed, so that nobody remembers it.
fn rotted(setup: Setup, lba: u64) -> Rig {
    let mut rig = setup.rig(1);
    let end = setup.sectors();
    rig.write(0..end).unwrap();
    let rig = rig.reopen().unwrap();
    let offset = rig.core.map.get(lba).address().offset().get();
    rig.disk.flip_bit(offset + 100, 2);
    rig
}

fn try_read(rig: &Rig, sectors: Range<u64>) -> Result<Vec<u8>, Errno> {
    let mut channel = LogChannel::new(Arc::clone(&rig.core), QueueDepth(8), true).unwrap();
    read_now(&mut channel, &sectors)
}

#[test]
fn a_part_is_not_written_onto_what_has_rotted() {
    let start = 3 * BLOCK_SECTORS;
    let parts = [
        start..start + 1,
        start + 7..start + 8,
        start + 2..start + 9,
        start - 9..start + 1,
        start + 1..start + 17,
    ];
    for part in parts {
        for zeroes in [false, true] {
            let mut rig = rotted(Setup { blocks: 40, ..Setup::default() }, 3);
            let word = rig.core.map.get(3);
            rig.guests().change(0, part.clone(), zeroes, |_| ()).unwrap();
            rig.guests().kick(0);
            rig.settle();
            assert_eq!(rig.guests().failures.len(), 1, "{part:?} {zeroes}");
            assert_eq!(rig.guests().failures[0].errno, Errno::IO);
            assert_eq!(rig.core.map.get(3), word, "the rot has been given a new checksum");
            assert_eq!(try_read(&rig, start..start + 8), Err(Errno::IO));
            assert_eq!(try_read(&rig, start + 5..start + 6), Err(Errno::IO));
            // Its neighbours are as they were, and it can be written as a whole.
            assert!(try_read(&rig, start - 8..start).is_ok());
            rig.guests().failures.clear();
            rig.write(start..start + 8).unwrap();
            rig.read(start..start + 8).unwrap();
            rig.write(part.clone()).unwrap();
            rig.reopen().unwrap();
        }
    }
}

/// Two parts that make a whole are two parts.
#[test]
fn two_parts_of_what_has_rotted_written_together_are_errors() {
    let mut rig = rotted(Setup { blocks: 40, ..Setup::default() }, 3);
    let start = 3 * BLOCK_SECTORS;
    rig.guests().write(0, start..start + 4);
    rig.guests().write(0, start + 4..start + 8);
    rig.guests().kick(0);
    rig.settle();
    assert_eq!(rig.guests().failures.len(), 2);
    assert_eq!(try_read(&rig, start..start + 8), Err(Errno::IO));
}

/// The last block of a disk that ends inside it, written as far as the disk goes, is covered.
#[test]
fn the_rotted_end_of_an_odd_disk_can_be_written_again() {
    let setup = Setup { blocks: 40, cut: 3, ..Setup::default() };
    let end = setup.sectors();
    let mut rig = rotted(setup, 39);
    assert_eq!(rig.write(end - 1..end), Err(Errno::IO));
    rig.guests().failures.clear();
    rig.write(end - 5..end).unwrap();
    rig.read(end - 5..end).unwrap();
    rig.write(end - 1..end).unwrap();
    rig.read(end - 5..end).unwrap();
}

/// Cleaning leaves what has rotted where it is, and moves the rest.
#[test]
fn cleaning_does_not_launder_rot() {
    let setup = Setup::default();
    let mut rig = rotted(setup, 3);
    let word = rig.core.map.get(3);
    for round in 0..600 {
        let lba = 10 + round * 7 % (setup.blocks - 20);
        rig.write_blocks(lba..lba + 3).unwrap();
        rig.step();
    }
    assert_eq!(rig.core.map.get(3), word);
    assert_eq!(try_read(&rig, 24..32), Err(Errno::IO));
    rig.keeper(Keeper::compact).unwrap();
    assert_eq!(try_read(&rig, 24..32), Err(Errno::IO));
    rig.write_blocks(3..4).unwrap();
    rig.check();
}
