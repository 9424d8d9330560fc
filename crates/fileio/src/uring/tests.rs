//! Submission entries as the kernel gets them.

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
    write_stream: u8,
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
        write_stream: bytes[44],
    }
}

fn channel(direct: Option<DirectLimits>) -> UringChannel {
    channel_of(&QueueContext::alone(QueueDepth(8)).unwrap(), direct)
}

fn channel_of(context: &QueueContext, direct: Option<DirectLimits>) -> UringChannel {
    let file = tempfile::tempfile().unwrap();
    let file = Arc::new(Descriptors::new(file, direct, FileKind::Regular).unwrap());
    let pool = PoolChannel::new(Arc::new(Pool::default()), Arc::clone(&file), &context.reactor);
    UringChannel::new(file, pool, context.depth, &context.reactor).expect("a host with io_uring")
}

/// The durability of a write-through disk depends on this flag: a write without it completes before
/// it is on the medium, and so does the rest of a short write.
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
        let expected = |offset| Submission { descriptor, offset, flags, write_stream: 0 };
        assert_eq!(submission(&channel), expected(512));
        assert!(matches!(channel.in_flight[0].advance(1024), Progress::Again));
        assert_eq!(submission(&channel), expected(1536));
        drop(channel);
    }
}

/// A copy in a log image would fail for ever on a device that has lost its streams.
#[test]
fn a_write_names_its_stream_and_goes_on_without_if_that_is_refused() {
    let mut buffer = AlignedBuf::zeroed(4096);
    // SAFETY: the buffer outlives the channel.
    let list = [unsafe { IoVec::of(&mut buffer) }];
    let mut channel = channel(None);
    let op = FileOp::Write { offset: FileOffset::new(0), bytes: 4096, durable: false };
    // SAFETY: the list outlives the channel.
    let request = FileRequest::new(op, unsafe { MemoryList::new(&list) }, 0);
    channel.submit(request.write_stream(3));
    assert_eq!(submission(&channel).write_stream, 3);
    let refused = -Errno::INVAL.raw_os_error();
    assert!(matches!(channel.in_flight[0].advance(refused), Progress::Again));
    assert_eq!(submission(&channel).write_stream, 0);
    let again = channel.in_flight[0].advance(refused);
    assert!(matches!(again, Progress::Done(Err(Errno::INVAL))));
    drop(channel);
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

/// Regression: the ring copied 504 MiB from the page cache during the submission.
#[test]
fn a_long_copy_from_or_to_the_page_cache_is_made_by_a_thread_of_the_file() {
    let limits = DirectLimits { offset_bytes: 512, memory_bytes: 512 };
    for (direct, bytes, is_long) in [
        (None, 2 << 20, false),
        (None, (2 << 20) + 4096, true),
        (Some(limits), (2 << 20) + 4096, false),
    ] {
        let mut buffer = AlignedBuf::zeroed(bytes);
        // SAFETY: the buffer outlives the channel.
        let list = [unsafe { IoVec::of(&mut buffer) }];
        let mut channel = channel(direct);
        let (offset, bytes) = (FileOffset::new(0), bytes as u64);
        let op = FileOp::Write { offset, bytes, durable: false };
        // SAFETY: the list outlives the channel.
        channel.submit(FileRequest::new(op, unsafe { MemoryList::new(&list) }, 0));
        assert_eq!(channel.in_flight.is_empty(), is_long, "{direct:?} {bytes}");
        assert_eq!(!channel.pool.is_idle(), is_long);
        drop(channel);
    }
}

/// A page of a monitor's memory, mapped and registered.
struct Shared {
    file: std::fs::File,
    start: *mut u8,
    _guard: flowstone_block::Guarded,
}

const PAGE: usize = 4096;

impl Shared {
    fn new() -> Self {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let file = tempfile::tempfile().unwrap();
        file.set_len(PAGE as u64).unwrap();
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping touches nothing of ours; it stays until the process ends.
        let start = unsafe { mmap(std::ptr::null_mut(), PAGE, access, flags, &file, 0).unwrap() };
        let start = start.cast::<u8>();
        // SAFETY: it was just mapped, so long, and nothing else knows of it.
        let _guard = unsafe { flowstone_block::Guarded::new(start, PAGE, PAGE) };
        Self { file, start, _guard }
    }

    fn piece(&self) -> [IoVec; 1] {
        // SAFETY: within the mapping, which stays.
        [unsafe { IoVec::new(self.start, PAGE) }]
    }

    /// Truncates the monitor's file and touches the page: a page of zeroes replaces it.
    fn lose(&self) {
        self.file.set_len(0).unwrap();
        // SAFETY: within the mapping.
        assert_eq!(unsafe { self.start.read_volatile() }, 0);
    }
}

/// Registers a request as in flight without submitting it to the ring, so that the test can choose
/// its completion.
fn with_the_ring(channel: &mut UringChannel, op: FileOp, list: &[IoVec; 1]) -> usize {
    // SAFETY: the callers keep the list until the channel is gone.
    let request = FileRequest::new(op, unsafe { MemoryList::new(list) }, 3);
    let (moved, rest, bounce, refusals) = Default::default();
    channel.in_flight.insert(InFlight { request, moved, rest, bounce, refusals })
}

fn transfer(write: bool) -> FileOp {
    let (offset, bytes) = (FileOffset::new(0), PAGE as u64);
    match write {
        true => FileOp::Write { offset, bytes, durable: true },
        false => FileOp::Read { offset, bytes },
    }
}

/// Memory was checked when a request came, and not again when the rest of a short write, or an
/// unstarted write, was submitted: zeroes were written to the disk.
#[test]
fn what_is_left_of_a_write_is_not_started_when_its_memory_is_lost() {
    let result_of_a_ring_without_threads = -libc::ECANCELED;
    for result in [1024, result_of_a_ring_without_threads] {
        let context = QueueContext::alone(QueueDepth(8)).unwrap();
        let (shared, mut done) = (Shared::new(), Vec::new());
        let mut channel = channel_of(&context, None);
        let list = shared.piece();
        let index = with_the_ring(&mut channel, transfer(true), &list);
        shared.lose();
        channel.finish(index, result, &mut done);
        while done.is_empty() {
            context.reactor.sleep(|| channel.next_look());
            channel.reap(&mut done);
        }
        let [FileCompletion { tag: 3, outcome, asked }] = *done else { panic!("{done:?}") };
        assert_eq!((outcome, asked), (Err(Errno::FAULT), result > 0));
        assert_eq!(channel.file.size().unwrap(), 0, "something was written");
        assert!(channel.is_idle());
    }
}

/// The page was replaced while the kernel had the request: it may have written zeroes, or the data
/// read may be lost.
#[test]
fn a_request_whose_memory_was_lost_on_its_way_does_not_count_as_done() {
    for write in [true, false] {
        let (shared, mut channel, mut done) = (Shared::new(), channel(None), Vec::new());
        let list = shared.piece();
        let index = with_the_ring(&mut channel, transfer(write), &list);
        shared.lose();
        channel.finish(index, PAGE as i32, &mut done);
        let [FileCompletion { tag: 3, outcome, asked: true }] = *done else { panic!("{done:?}") };
        assert_eq!(outcome, Err(Errno::FAULT), "write: {write}");
        let index = with_the_ring(&mut channel, transfer(write), &list);
        channel.finish(index, -libc::EIO, &mut done);
        assert_eq!(done[1].outcome, Err(Errno::IO), "what the host said is kept");
    }
}
