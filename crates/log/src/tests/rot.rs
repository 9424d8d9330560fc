//! Partial writes to rotted blocks: an error, unless none of the old content is kept.

use std::ops::Range;

use flowstone_block::Errno;

use super::fixture::{BLOCK_SECTORS, Fixture, Setup, queue, read_now};
use crate::maintenance::Maintenance;

/// An image with a flipped bit in block `lba`, flipped while it was closed, so that no cache has
/// the old content.
fn rotted(setup: Setup, lba: u64) -> Fixture {
    let mut fixture = setup.fixture(1);
    let end = setup.sectors();
    fixture.write(0..end).unwrap();
    let fixture = fixture.reopen().unwrap();
    let offset = fixture.volume.map.get(lba).address().offset().get();
    fixture.disk.flip_bit(offset + 100, 2);
    fixture
}

fn try_read(fixture: &Fixture, sectors: Range<u64>) -> Result<Vec<u8>, Errno> {
    let mut channel = queue(&fixture.log, &fixture.volume, true);
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
            let mut fixture = rotted(Setup { blocks: 40, ..Setup::default() }, 3);
            let map_entry = fixture.volume.map.get(3);
            fixture.guests().change(0, part.clone(), zeroes, |_| ()).unwrap();
            fixture.guests().kick(0);
            fixture.drain();
            assert_eq!(fixture.guests().failures.len(), 1, "{part:?} {zeroes}");
            assert_eq!(fixture.guests().failures[0].errno, Errno::IO);
            assert_eq!(
                fixture.volume.map.get(3),
                map_entry,
                "the rot has been given a new checksum"
            );
            assert_eq!(try_read(&fixture, start..start + 8), Err(Errno::IO));
            assert_eq!(try_read(&fixture, start + 5..start + 6), Err(Errno::IO));
            // Its neighbours are unchanged, and it can be written as a whole.
            assert!(try_read(&fixture, start - 8..start).is_ok());
            fixture.guests().failures.clear();
            fixture.write(start..start + 8).unwrap();
            fixture.read(start..start + 8).unwrap();
            fixture.write(part.clone()).unwrap();
            fixture.reopen().unwrap();
        }
    }
}

/// A block that cannot be verified may read better another time: it is not moved.
#[test]
fn what_has_rotted_is_not_moved_by_the_idle_time_pass() {
    let mut fixture = rotted(Setup { blocks: 512, reserve: Some(70), ..Setup::default() }, 3);
    for lba in (0..256).filter(|lba| lba % 2 == 0) {
        fixture.write_blocks(lba..lba + 1).unwrap();
    }
    let (bad, good) = (fixture.volume.map.get(3), fixture.volume.map.get(5));
    fixture.volume.resorting.set_limit(1 << 40);
    fixture.maintenance(|it| it.resort.look_at_guests());
    fixture.maintenance(|it| it.resort.run(&mut it.cleaner, &mut it.writer)).unwrap();
    assert_ne!(fixture.volume.map.get(5), good, "nothing was put in order");
    assert_eq!(fixture.volume.map.get(3), bad);
    assert_eq!(try_read(&fixture, 24..32), Err(Errno::IO));
    fixture.disk.flip_bit(bad.address().offset().get() + 100, 2);
    fixture.check();
}

/// Two partial writes that together cover the block are still partial.
#[test]
fn two_parts_of_what_has_rotted_written_together_are_errors() {
    let mut fixture = rotted(Setup { blocks: 40, ..Setup::default() }, 3);
    let start = 3 * BLOCK_SECTORS;
    fixture.guests().write(0, start..start + 4);
    fixture.guests().write(0, start + 4..start + 8);
    fixture.guests().kick(0);
    fixture.drain();
    assert_eq!(fixture.guests().failures.len(), 2);
    assert_eq!(try_read(&fixture, start..start + 8), Err(Errno::IO));
}

/// The last block of a disk that ends inside it is fully covered by a write up to the end of the
/// disk.
#[test]
fn the_rotted_end_of_an_odd_disk_can_be_written_again() {
    let setup = Setup { blocks: 40, cut: 3, ..Setup::default() };
    let end = setup.sectors();
    let mut fixture = rotted(setup, 39);
    assert_eq!(fixture.write(end - 1..end), Err(Errno::IO));
    fixture.guests().failures.clear();
    fixture.write(end - 5..end).unwrap();
    fixture.read(end - 5..end).unwrap();
    fixture.write(end - 1..end).unwrap();
    fixture.read(end - 5..end).unwrap();
}

/// Cleaning leaves rotted blocks where they are, and moves the others.
#[test]
fn cleaning_does_not_launder_rot() {
    let setup = Setup::default();
    let mut fixture = rotted(setup, 3);
    let map_entry = fixture.volume.map.get(3);
    for round in 0..600 {
        let lba = 10 + round * 7 % (setup.blocks - 20);
        fixture.write_blocks(lba..lba + 3).unwrap();
        fixture.step();
    }
    assert_eq!(fixture.volume.map.get(3), map_entry);
    assert_eq!(try_read(&fixture, 24..32), Err(Errno::IO));
    fixture.maintenance(Maintenance::compact).unwrap();
    assert_eq!(try_read(&fixture, 24..32), Err(Errno::IO));
    fixture.write_blocks(3..4).unwrap();
    fixture.check();
}
