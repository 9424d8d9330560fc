//! What goes into which write stream of the drive.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fastrand::Rng;
use flowstone_block::{BlockingDisk, NextLook, Sector};
use flowstone_fileio::{Access, FileChannel, FileCompletion, FileOp, FileRequest};
use flowstone_image::{DiscardMode, Image};
use flowstone_sim::Wrapped;

use super::fixture::{BLOCK_SECTORS, Setup};
use crate::disk::LogImage;
use crate::state::LogState;

/// Blocks written, without a stream and in the first one.
type Written = Arc<[AtomicU64; 2]>;

struct Counted(Box<dyn FileChannel>, Written);

impl FileChannel for Counted {
    fn submit(&mut self, request: FileRequest) {
        if let FileOp::Write { bytes, .. } = request.op {
            let count = &self.1[usize::from(request.write_stream)];
            count.fetch_add(bytes / 4096, Ordering::Relaxed);
        }
        self.0.submit(request);
    }

    fn kick(&mut self) {
        self.0.kick();
    }

    fn reap(&mut self, done: &mut Vec<FileCompletion>) {
        self.0.reap(done);
    }

    fn next_look(&mut self) -> NextLook {
        self.0.next_look()
    }
}

/// Overwrites a disk at random, and puts it in order at last. Returns the blocks written without a
/// stream and in the first one, and those that were copied, with headers.
fn blocks_written(write_streams: u8) -> ([u64; 2], u64) {
    let setup = Setup::default();
    let written = Written::default();
    let count = Arc::clone(&written);
    let mut file = Wrapped::new(&setup.image(), move |it| Counted(it, Arc::clone(&count)));
    file.write_streams = write_streams;
    let (file, mode) = (Box::new(file), DiscardMode::Deallocate);
    let image = LogImage::open(Path::new("image"), file, mode, Access::Write, None, None).unwrap();
    let mut guest = BlockingDisk::new(&image).unwrap();
    let mut random = Rng::with_seed(1);
    for _ in 0..20 * setup.blocks {
        let lba = random.u64(..setup.blocks);
        guest.write(Sector::new(lba * BLOCK_SECTORS), &mut [7; 4096]).unwrap();
    }
    drop(guest);
    let relocated = || LogState::of(&image.log, &image.volume).relocated_blocks;
    let cleaned = relocated();
    image.compact(&mut |_, _| ()).unwrap();
    let relocated = relocated();
    assert!(0 < cleaned && cleaned < relocated, "{cleaned} copies by cleaning, {relocated} in all");
    image.close().unwrap();
    (written.each_ref().map(|count| count.load(Ordering::Relaxed)), relocated)
}

/// Of a stream of copies all records and their seals are in it, and nothing else.
#[test]
fn copies_go_into_a_write_stream_of_the_drive() {
    let ([others, copies], relocated) = blocks_written(1);
    assert!(others > 0 && copies >= relocated, "{others}, {copies}, {relocated}");
    let seals = copies - relocated;
    assert!(seals < relocated / 4, "{copies} for {relocated}");
}

#[test]
fn a_drive_without_write_streams_is_told_of_none() {
    let ([others, copies], relocated) = blocks_written(0);
    assert!(others > relocated && copies == 0, "{others}, {copies}, {relocated}");
}
