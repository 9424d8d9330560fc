//! Submissions as the kernel gets them.

use flowstone_block::{AlignedBuf, QueueContext};

use super::*;
use crate::FileOffset;
use crate::descriptor::{Descriptors, FileKind};
use crate::direct::{DirectLimits, HOST_IS_OUT_OF_MEMORY};
use crate::pool::Pool;

/// Fields of `struct io_uring_sqe`.
#[derive(Debug, PartialEq, Eq)]
struct Submission {
    descriptor: i32,
    offset: u64,
    flags: u32,
}

fn submission(channel: &UringChannel) -> Submission {
    let (_, in_flight) = channel.in_flight.iter().next().unwrap();
    let entry = entry_for(&channel.file, in_flight);
    assert_eq!(size_of_val(&entry), 64);
    // SAFETY: the entry is the kernel's struct of 64 bytes, all of which were set.
    let bytes: [u8; 64] = unsafe { std::mem::transmute_copy(&entry) };
    Submission {
        descriptor: i32::from_ne_bytes(bytes[4..8].try_into().unwrap()),
        offset: u64::from_ne_bytes(bytes[8..16].try_into().unwrap()),
        flags: u32::from_ne_bytes(bytes[28..32].try_into().unwrap()),
    }
}

fn channel(direct: Option<DirectLimits>) -> UringChannel {
    let file = tempfile::tempfile().unwrap();
    let file = Arc::new(Descriptors::new(file, direct, FileKind::Regular).unwrap());
    let context = QueueContext::alone(QueueDepth(8)).unwrap();
    let pool = PoolChannel::new(Arc::new(Pool::default()), Arc::clone(&file), &context.reactor);
    UringChannel::new(file, pool, context.depth, &context.reactor).expect("a host with io_uring")
}

/// A write-through disk is as durable as this flag: a write without it completes before the medium
/// has it, and so does the rest of one that came up short.
#[test]
fn a_durable_write_says_so_and_still_does_when_it_is_resumed() {
    const BYTES: usize = 4096;
    let mut buffer = AlignedBuf::zeroed(BYTES);
    for durable in [true, false] {
        // SAFETY: the buffer outlives the channel.
        let list = [unsafe { IoVec::of(&mut buffer) }];
        let mut channel = channel(None);
        let op = FileOp::Write { offset: FileOffset::new(512), bytes: BYTES as u64, durable };
        // SAFETY: the list outlives the channel.
        channel.submit(FileRequest::new(op, unsafe { MemoryList::new(&list) }, 0));
        let flags = if durable { libc::RWF_DSYNC as u32 } else { 0 };
        let descriptor = channel.file.file.as_raw_fd();
        assert_eq!(submission(&channel), Submission { descriptor, offset: 512, flags });
        assert!(matches!(channel.in_flight[0].advance(1024), Progress::Again));
        assert_eq!(submission(&channel), Submission { descriptor, offset: 1536, flags });
        drop(channel);
    }
}

#[test]
fn a_sync_is_a_data_sync_of_the_description_for_syncs() {
    let mut channel = channel(None);
    channel.submit(FileRequest::new(FileOp::Datasync, MemoryList::EMPTY, 0));
    let Submission { descriptor, flags, .. } = submission(&channel);
    assert_eq!(descriptor, channel.file.to_sync().as_raw_fd());
    assert_ne!(descriptor, channel.file.file.as_raw_fd());
    assert_eq!(flags, FsyncFlags::DATASYNC.bits());
}

#[test]
fn a_write_without_memory_for_its_stand_in_was_not_asked_of_the_host() {
    let mut channel = channel(Some(DirectLimits { offset_bytes: 512, memory_bytes: 4 }));
    let mut buffer = AlignedBuf::zeroed(513);
    // SAFETY: the buffer outlives the channel.
    let list = [unsafe { IoVec::of(&mut buffer[1..]) }];
    let op = FileOp::Write { offset: FileOffset::new(0), bytes: 512, durable: true };
    HOST_IS_OUT_OF_MEMORY.set(true);
    // SAFETY: the list outlives the channel.
    channel.submit(FileRequest::new(op, unsafe { MemoryList::new(&list) }, 3));
    HOST_IS_OUT_OF_MEMORY.set(false);
    let mut done = Vec::new();
    channel.reap(&mut done);
    let [FileCompletion { tag: 3, outcome, asked: false }] = *done else { panic!("{done:?}") };
    assert_eq!(outcome, Err(Errno::NOMEM));
    drop(channel);
}
