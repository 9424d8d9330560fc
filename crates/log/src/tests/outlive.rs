//! Queues that outlive their image, images that outlive their maintenance worker, and writes whose
//! memory is lost.

use std::path::Path;
use std::sync::Arc;

use flowstone_block::{BlockingDisk, Errno, Guarded, Op, Sector, SectorCount};
use flowstone_fileio::Access;
use flowstone_image::{DiscardMode, Image};
use flowstone_sim::SimDisk;
use rustix::mm::{MapFlags, ProtFlags, mmap};

use super::fixture::{BLOCK_SECTORS, Setup};
use super::history_model::{read_stamps, stamp};
use crate::disk::LogImage;

fn open(disk: &SimDisk, access: Access) -> LogImage {
    LogImage::open(
        Path::new("image"),
        Box::new(disk.clone()),
        DiscardMode::Deallocate,
        access,
        None,
        None,
    )
    .unwrap()
}

fn stamped(lba: u64, number: u64) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    stamp(&mut bytes, lba * BLOCK_SECTORS, number);
    bytes
}

/// It wrote behind a superblock marked as clean: the next open detected that, and refused the
/// image.
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

/// A guest's memory was lost while its write was copied into a record: zeroes were written with a
/// matching checksum. Whole blocks and parts of one.
#[test]
fn a_write_whose_memory_is_lost_is_refused_and_what_was_there_stays() {
    for bytes in [4096, 512] {
        let disk = Setup::default().image();
        let image = open(&disk, Access::Write);
        let mut guest = BlockingDisk::new(&image).unwrap();
        guest.write(Sector::new(0), &mut stamped(0, 1)).unwrap();
        let shared = tempfile::tempfile().unwrap();
        shared.set_len(4096).unwrap();
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping touches nothing of ours; it stays until the process ends.
        let (data, _guard) = unsafe {
            let start = mmap(std::ptr::null_mut(), 4096, access, flags, &shared, 0).unwrap();
            let guard = Guarded::new(start.cast(), 4096, 4096);
            (std::slice::from_raw_parts_mut(start.cast::<u8>(), bytes), guard)
        };
        shared.set_len(0).unwrap();
        assert_eq!(guest.write(Sector::new(0), data), Err(Errno::FAULT));
        let mut seen = vec![0; 4096];
        guest.read(Sector::new(0), &mut seen).unwrap();
        assert_eq!(read_stamps(&seen, 0).unwrap(), [1; 8]);
        guest.write(Sector::new(0), &mut stamped(0, 2)).unwrap();
        guest.run(Op::Flush).unwrap();
    }
}
