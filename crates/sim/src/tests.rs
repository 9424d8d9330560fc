//! The guarantees of the simulated disk, and the occurrence of everything not guaranteed.

mod crashes;
mod faults;
mod oracle;
mod queues;

use flowstone_block::{IoVec, QueueContext, QueueDepth};
use flowstone_fileio::{
    FileChannel, FileCompletion, FileIo, FileOffset, FileOp, FileRequest, MemoryList,
};

use super::SimDisk;

/// A channel with the memory of its requests; a request's tag is its index.
struct Queue {
    // Declared first, so that it is dropped before the memory.
    channel: Box<dyn FileChannel>,
    held: Vec<(Vec<u8>, Box<[IoVec; 1]>)>,
}

impl Queue {
    fn new(disk: &SimDisk) -> Self {
        let context = QueueContext::alone(QueueDepth(32)).unwrap();
        Self { channel: disk.channel(&context).unwrap(), held: Vec::new() }
    }

    fn submit(&mut self, op: FileOp, fill: u8) {
        let bytes = match op {
            FileOp::Read { bytes, .. } | FileOp::Write { bytes, .. } => bytes,
            _ => 0,
        };
        let mut memory = vec![fill; bytes as usize];
        // SAFETY: the heap memory named stays where it is, and outlives the channel.
        let list = Box::new([unsafe { IoVec::of(&mut memory) }]);
        let tag = self.held.len();
        self.held.push((memory, list));
        let pieces: &[IoVec] = &*self.held[tag].1;
        // SAFETY: the list is on the heap too, and outlives the channel.
        let memory = if bytes > 0 { unsafe { MemoryList::new(pieces) } } else { MemoryList::EMPTY };
        self.channel.submit(FileRequest::new(op, memory, tag));
    }

    /// Completes everything.
    fn finish(&mut self, count: usize) -> Vec<FileCompletion> {
        let mut done = Vec::new();
        self.channel.kick();
        while done.len() < count {
            self.channel.reap(&mut done);
        }
        done
    }
}

fn write(at: u64, bytes: u64) -> FileOp {
    FileOp::Write { offset: FileOffset::new(at), bytes, durable: false }
}

fn durable_write(at: u64, bytes: u64) -> FileOp {
    FileOp::Write { offset: FileOffset::new(at), bytes, durable: true }
}

fn read(at: u64, bytes: u64) -> FileOp {
    FileOp::Read { offset: FileOffset::new(at), bytes }
}

fn punch(at: u64, bytes: u64) -> FileOp {
    FileOp::Punch { offset: FileOffset::new(at), bytes }
}

fn zero(at: u64, bytes: u64) -> FileOp {
    FileOp::Zero { offset: FileOffset::new(at), bytes }
}

fn allocate(at: u64, bytes: u64) -> FileOp {
    FileOp::Allocate { offset: FileOffset::new(at), bytes }
}

/// Writes and completes.
fn put(disk: &SimDisk, at: u64, bytes: u64, fill: u8) {
    disk.run(write(at, bytes), &mut vec![fill; bytes as usize]).unwrap();
}

fn put_durably(disk: &SimDisk, at: u64, bytes: u64, fill: u8) {
    disk.run(durable_write(at, bytes), &mut vec![fill; bytes as usize]).unwrap();
}

fn sync(disk: &SimDisk) {
    disk.run(FileOp::Datasync, &mut []).unwrap();
}

/// Returns the first byte of the sector at `at`.
fn look(disk: &SimDisk, at: u64) -> u8 {
    let mut byte = [0];
    disk.read_at(at, &mut byte);
    byte[0]
}
