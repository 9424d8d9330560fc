//! Queues that are there longer than their image, and images whose maintenance worker is not.

use std::path::Path;
use std::sync::Arc;

use flowstone_block::{BlockingDisk, Errno, Op, Sector, SectorCount};
use flowstone_fileio::Access;
use flowstone_sim::SimDisk;

use super::fixture::{BLOCK_SECTORS, Setup};
use super::history_model::{read_stamps, stamp};
use crate::log::disk::LogImage;
use crate::{DiscardMode, Image};

fn open(disk: &SimDisk, access: Access) -> LogImage {
    LogImage::open(Path::new("image"), Box::new(disk.clone()), DiscardMode::Deallocate, access)
        .unwrap()
}

fn stamped(lba: u64, number: u64) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    stamp(&mut bytes, lba * BLOCK_SECTORS, number);
    bytes
}

/// It wrote behind a superblock that said that nothing comes after it: the next start found that
/// out, and refused the image.
#[test]
fn a_queue_that_outlives_its_image_writes_nothing_more() {
    let disk = Setup::default().image();
    let image = open(&disk, Access::Write);
    let mut guest = BlockingDisk::new(&image).unwrap();
    guest.write(Sector::new(0), &mut stamped(0, 1)).unwrap();
    drop(image);
    assert_eq!(guest.write(Sector::new(8), &mut stamped(1, 2)), Err(Errno::IO));
    let mut bytes = vec![0; 4096];
    guest.read(Sector::new(0), &mut bytes).unwrap();
    assert_eq!(read_stamps(&bytes, 0).unwrap(), [1; 8]);
    drop(guest);
    let image = open(&disk, Access::Write);
    let mut guest = BlockingDisk::new(&image).unwrap();
    guest.read(Sector::new(0), &mut bytes).unwrap();
    assert_eq!(read_stamps(&bytes, 0).unwrap(), [1; 8]);
    guest.run(Op::Flush).unwrap();
}

/// There was no thread to do it, so the caller waited for ever.
#[test]
fn an_image_open_for_reading_is_not_resized() {
    let disk = Setup::default().image();
    let image: Arc<dyn Image> = Arc::new(open(&disk, Access::Read));
    let (done, is_done) = std::sync::mpsc::channel();
    let asker = Arc::clone(&image);
    std::thread::spawn(move || done.send(asker.resize(SectorCount::new(8192)).is_err()));
    let refused = is_done.recv_timeout(flowstone_testkit::HANG);
    assert_eq!(refused, Ok(true), "it waits for a maintenance worker that is gone");
    assert_eq!(image.geometry().capacity, SectorCount::new(Setup::default().sectors()));
}
