//! Common behaviour of all engines, and of the volatile write cache that tests put in front of a
//! file.

use std::fs::File;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use flowstone_block::{
    AlignedBuf, Errno, IoVec, NextLook, Outcome, QueueContext, QueueDepth, Reactor,
};
use flowstone_fileio::{
    Access, BlockingFile, DirectChoice, EngineChoice, FileChannel, FileCompletion, FileIo,
    FileOffset, FileOp, FileOpener, FileRequest, MemoryList, OpenOptions, create_sparse,
    open_host_file,
};
use flowstone_reactor::Watch;
use flowstone_sim::open_volatile;
use rustix::event::{EventfdFlags, eventfd};

const DEPTH: QueueDepth = QueueDepth(32);
const FILE_BYTES: u64 = 4 << 20;

/// A file and how to open it: each engine, on a disk file system and in memory.
struct Case {
    name: &'static str,
    dir: tempfile::TempDir,
    engine: EngineChoice,
    direct: DirectChoice,
    opener: FileOpener,
}

fn cases() -> Vec<Case> {
    let on_disk = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let in_memory = Path::new("/dev/shm");
    let plain = |name, dir, engine, direct| Case {
        name,
        dir: tempfile::tempdir_in(dir).unwrap(),
        engine,
        direct,
        opener: open_host_file,
    };
    let volatile = |name, dir, direct| Case {
        opener: open_volatile,
        ..plain(name, dir, EngineChoice::Auto, direct)
    };
    use {DirectChoice as D, EngineChoice as E};
    vec![
        plain("uring direct", on_disk, E::Uring, D::Auto),
        plain("uring buffered", on_disk, E::Uring, D::Off),
        plain("uring tmpfs", in_memory, E::Uring, D::Auto),
        plain("sync direct", on_disk, E::Sync, D::Auto),
        plain("sync buffered", on_disk, E::Sync, D::Off),
        plain("inline", in_memory, E::Auto, D::Auto),
        volatile("volatile direct", on_disk, D::Auto),
        volatile("volatile buffered", on_disk, D::Off),
        volatile("volatile tmpfs", in_memory, D::Auto),
    ]
}

impl Case {
    fn path(&self) -> PathBuf {
        self.dir.path().join("disk.raw")
    }

    /// Returns whether completed writes may not have reached the host.
    fn holds_back(&self) -> bool {
        self.name.starts_with("volatile")
    }

    fn create(&self) -> Box<dyn FileIo> {
        create_sparse(&self.path(), FILE_BYTES).unwrap();
        self.open(Access::Write)
    }

    fn open(&self, access: Access) -> Box<dyn FileIo> {
        let options =
            OpenOptions { direct: self.direct, engine: self.engine, ..OpenOptions::new(access) };
        (self.opener)(&self.path(), options).unwrap()
    }
}

/// A channel with its own thread.
struct Queue {
    channel: Box<dyn FileChannel>,
    reactor: Reactor,
}

impl Queue {
    fn new(file: &dyn FileIo, depth: QueueDepth) -> Self {
        let context = QueueContext::alone(depth).unwrap();
        Self { channel: file.channel(&context).unwrap(), reactor: context.reactor }
    }

    fn sleep(&mut self) {
        self.reactor.sleep(|| self.channel.next_look());
    }
}

impl Deref for Queue {
    type Target = dyn FileChannel;

    fn deref(&self) -> &Self::Target {
        &*self.channel
    }
}

impl DerefMut for Queue {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut *self.channel
    }
}

fn wait_for(channel: &mut Queue, count: usize) -> Vec<FileCompletion> {
    let mut done = Vec::new();
    let start = Instant::now();
    channel.kick();
    while done.len() < count {
        channel.reap(&mut done);
        if done.len() < count {
            channel.sleep();
        }
        assert!(start.elapsed() < flowstone_testkit::HANG, "requests got lost");
    }
    done
}

fn run(channel: &mut Queue, op: FileOp, memory: &mut [u8]) -> Outcome {
    let list = [
        // SAFETY: the memory outlives the request, which completes in wait_for.
        unsafe { IoVec::of(memory) },
    ];
    let memory = if memory.is_empty() {
        MemoryList::EMPTY
    } else {
        // SAFETY: as above, for the list.
        unsafe { MemoryList::new(&list) }
    };
    channel.submit(FileRequest::new(op, memory, 9));
    let done = wait_for(channel, 1);
    assert_eq!(done[0].tag, 9);
    done[0].outcome
}

fn write_op(offset: u64, bytes: usize) -> FileOp {
    FileOp::Write { offset: FileOffset::new(offset), bytes: bytes as u64, durable: false }
}

fn read_op(offset: u64, bytes: usize) -> FileOp {
    FileOp::Read { offset: FileOffset::new(offset), bytes: bytes as u64 }
}

fn pattern(bytes: usize, seed: u8) -> Vec<u8> {
    (0..bytes).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

#[test]
fn aligned_and_odd_transfers_read_back_what_was_written() {
    for case in cases() {
        let file = case.create();
        let mut channel = Queue::new(&*file, DEPTH);
        for (offset, bytes, shift) in [
            (0, 4096, 0),
            (8192, 65536, 0),
            (512, 512, 0),
            (100_352, 1536, 3),
            (65_536, 4096, 1),
            // More than the bounce buffers of a queue hold.
            (1024, 900 << 10, 1),
        ] {
            let mut buffer = AlignedBuf::zeroed(bytes + shift);
            buffer[shift..].copy_from_slice(&pattern(bytes, shift as u8));
            run(&mut channel, write_op(offset, bytes), &mut buffer[shift..]).unwrap();
            let mut back = AlignedBuf::zeroed(bytes + shift);
            run(&mut channel, read_op(offset, bytes), &mut back[shift..]).unwrap();
            assert!(buffer[..] == back[..], "{}: {bytes} bytes at {offset}", case.name);
        }
        run(&mut channel, FileOp::Datasync, &mut []).unwrap();
    }
}

#[test]
fn scattered_memory_is_filled_in_order() {
    for case in cases() {
        let file = case.create();
        let mut channel = Queue::new(&*file, DEPTH);
        let mut source = AlignedBuf::zeroed(8192);
        source.copy_from_slice(&pattern(8192, 5));
        run(&mut channel, write_op(4096, 8192), &mut source).unwrap();
        let (mut first, mut second) = (AlignedBuf::zeroed(4096), AlignedBuf::zeroed(4096));
        // SAFETY: both buffers and the list outlive the request, which completes below.
        let list = unsafe { [IoVec::of(&mut first), IoVec::of(&mut second)] };
        // SAFETY: as above.
        let memory = unsafe { MemoryList::new(&list) };
        channel.submit(FileRequest::new(read_op(4096, 8192), memory, 1));
        wait_for(&mut channel, 1)[0].outcome.unwrap();
        assert!(first[..] == source[..4096] && second[..] == source[4096..], "{}", case.name);
    }
}

#[test]
fn a_full_queue_completes_every_request_once() {
    for case in cases() {
        let file = case.create();
        let mut channel = Queue::new(&*file, DEPTH);
        let mut buffers: Vec<AlignedBuf> = (0..200).map(|_| AlignedBuf::zeroed(4096)).collect();
        // SAFETY: the buffers outlive the requests, which complete below.
        let lists: Vec<[IoVec; 1]> =
            buffers.iter_mut().map(|buffer| [unsafe { IoVec::of(buffer) }]).collect();
        // More requests than the depth: the ring must apply back-pressure by itself, not fail.
        for (tag, list) in lists.iter().enumerate() {
            // SAFETY: the lists outlive the requests.
            let memory = unsafe { MemoryList::new(list) };
            let op = write_op(tag as u64 * 4096, 4096);
            channel.submit(FileRequest::new(op, memory, tag));
        }
        let mut tags: Vec<usize> = wait_for(&mut channel, 200)
            .iter()
            .map(|completion| {
                completion.outcome.unwrap();
                completion.tag
            })
            .collect();
        tags.sort_unstable();
        assert!(tags.iter().copied().eq(0..200), "{}", case.name);
    }
}

#[test]
fn punched_and_zeroed_ranges_read_zero_and_punching_frees_space() {
    for case in cases() {
        let file = case.create();
        let mut channel = Queue::new(&*file, DEPTH);
        let mut buffer = AlignedBuf::zeroed(1 << 20);
        buffer.fill(0xaa);
        run(&mut channel, write_op(0, 1 << 20), &mut buffer).unwrap();
        run(&mut channel, FileOp::Datasync, &mut []).unwrap();
        let before = file.allocated_bytes().unwrap();
        let zero = FileOp::Zero { offset: FileOffset::new(4096), bytes: 8192 };
        run(&mut channel, zero, &mut []).unwrap();
        let punch = FileOp::Punch { offset: FileOffset::new(512 << 10), bytes: 512 << 10 };
        run(&mut channel, punch, &mut []).unwrap();
        // A volatile file may not have written anything to the host yet.
        run(&mut channel, FileOp::Datasync, &mut []).unwrap();
        assert!(file.allocated_bytes().unwrap() + (500 << 10) < before, "{}", case.name);
        run(&mut channel, read_op(0, 1 << 20), &mut buffer).unwrap();
        assert!(buffer[..4096].iter().all(|byte| *byte == 0xaa), "{}", case.name);
        assert!(buffer[4096..12288].iter().all(|byte| *byte == 0), "{}", case.name);
        assert!(buffer[12288..512 << 10].iter().all(|byte| *byte == 0xaa), "{}", case.name);
        assert!(buffer[512 << 10..].iter().all(|byte| *byte == 0), "{}", case.name);
    }
}

#[test]
fn cleared_ranges_read_zero_and_space_stays_as_it_was() {
    // A volatile file may allocate holes: it does not know yet which ranges will be holes.
    for case in cases().into_iter().filter(|case| !case.holds_back()) {
        let file = case.create();
        let mut channel = Queue::new(&*file, DEPTH);
        let mut buffer = AlignedBuf::zeroed(1 << 20);
        for at in [0, 2 << 20] {
            buffer.fill(0xaa);
            run(&mut channel, write_op(at, 1 << 20), &mut buffer).unwrap();
        }
        run(&mut channel, FileOp::Datasync, &mut []).unwrap();
        let before = file.allocated_bytes().unwrap();
        // From inside a block: data, a hole, data, and the hole at the end.
        let clear = FileOp::Clear { offset: FileOffset::new(512), bytes: FILE_BYTES - 512 };
        run(&mut channel, clear, &mut []).unwrap();
        run(&mut channel, FileOp::Datasync, &mut []).unwrap();
        let after = file.allocated_bytes().unwrap();
        assert!(after.abs_diff(before) <= 64 << 10, "{}: {before} became {after}", case.name);
        for at in (0..FILE_BYTES).step_by(1 << 20) {
            run(&mut channel, read_op(at, 1 << 20), &mut buffer).unwrap();
            let kept = if at == 0 { 512 } else { 0 };
            assert!(buffer[..kept].iter().all(|byte| *byte == 0xaa), "{}: {at}", case.name);
            assert!(buffer[kept..].iter().all(|byte| *byte == 0), "{}: {at}", case.name);
        }
    }
}

#[test]
fn allocated_ranges_have_space_and_keep_their_content() {
    for case in cases() {
        let file = case.create();
        let mut channel = Queue::new(&*file, DEPTH);
        let mut buffer = AlignedBuf::zeroed(8192);
        buffer.fill(0x3d);
        run(&mut channel, write_op(1 << 20, 8192), &mut buffer).unwrap();
        run(&mut channel, FileOp::Datasync, &mut []).unwrap();
        let before = file.allocated_bytes().unwrap();
        // Over the content, and past the end of the file.
        for (offset, bytes) in [(0, 2 << 20), (FILE_BYTES - 4096, 1 << 20)] {
            let op = FileOp::Allocate { offset: FileOffset::new(offset), bytes };
            run(&mut channel, op, &mut []).unwrap();
        }
        run(&mut channel, FileOp::Datasync, &mut []).unwrap();
        let given = file.allocated_bytes().unwrap() - before;
        assert!(given >= (3 << 20) - 16384, "{}: {given} bytes", case.name);
        assert_eq!(file.size().unwrap(), FILE_BYTES - 4096 + (1 << 20), "{}", case.name);
        run(&mut channel, read_op(1 << 20, 8192), &mut buffer).unwrap();
        assert!(buffer.iter().all(|byte| *byte == 0x3d), "{}", case.name);
        run(&mut channel, read_op(FILE_BYTES, 8192), &mut buffer).unwrap();
        assert!(buffer.iter().all(|byte| *byte == 0), "{}", case.name);
    }
}

#[test]
fn a_file_truncated_under_us_is_an_error_not_a_short_read() {
    for case in cases() {
        let file = case.create();
        let mut channel = Queue::new(&*file, DEPTH);
        let shorter = FILE_BYTES - 4096;
        File::options().write(true).open(case.path()).unwrap().set_len(shorter).unwrap();
        let mut buffer = AlignedBuf::zeroed(8192);
        let outcome = run(&mut channel, read_op(shorter - 4096, 8192), &mut buffer);
        assert_eq!(outcome, Err(Errno::IO), "{}", case.name);
    }
}

#[test]
fn the_errno_of_a_refused_write_reaches_the_completion() {
    for case in cases() {
        drop(case.create());
        let file = case.open(Access::Read);
        let mut channel = Queue::new(&*file, DEPTH);
        let mut buffer = AlignedBuf::zeroed(4096);
        let outcome = run(&mut channel, write_op(0, 4096), &mut buffer);
        assert_eq!(outcome, Err(Errno::BADF), "{}", case.name);
    }
}

#[test]
fn a_sleep_ends_at_a_watched_descriptor_and_at_its_deadline() {
    for case in cases() {
        let file = case.create();
        let mut channel = Queue::new(&*file, DEPTH);
        let event = Arc::new(File::from(eventfd(0, EventfdFlags::NONBLOCK).unwrap()));
        let watch = Watch::new(&channel.reactor, Arc::clone(&event));
        let soon = Instant::now() + Duration::from_millis(20);
        let Queue { channel, reactor } = &mut channel;
        reactor.sleep(|| channel.next_look().min(NextLook::At(soon)));
        channel.reap(&mut Vec::new());
        assert!(Instant::now() >= soon, "{}: woke early", case.name);
        for _ in 0..3 {
            rustix::io::write(&*event, &1u64.to_ne_bytes()).unwrap();
            while !watch.take_ready() {
                reactor.sleep(|| channel.next_look());
            }
            rustix::io::read(&*event, &mut [0; 8]).unwrap();
            channel.reap(&mut Vec::new());
        }
    }
}

#[test]
fn dropping_a_channel_waits_for_what_is_in_flight() {
    for case in cases() {
        let file = case.create();
        let mut buffer = AlignedBuf::zeroed(1 << 20);
        buffer.fill(0x5c);
        // SAFETY: buffer and list outlive the channel, whose drop waits.
        let list = [unsafe { IoVec::of(&mut buffer) }];
        let mut channel = Queue::new(&*file, DEPTH);
        // SAFETY: as above.
        let memory = unsafe { MemoryList::new(&list) };
        channel.submit(FileRequest::new(write_op(0, 1 << 20), memory, 0));
        drop(channel);
        let mut back = AlignedBuf::zeroed(1 << 20);
        run(&mut Queue::new(&*file, DEPTH), read_op(0, 1 << 20), &mut back).unwrap();
        assert!(back.iter().all(|byte| *byte == 0x5c), "{}", case.name);
    }
}

#[test]
fn a_file_is_free_when_its_last_request_has_been_answered() {
    for case in cases() {
        drop(case.create());
        for _ in 0..300 {
            let file = case.open(Access::Write);
            let mut blocking = BlockingFile::new(&*file).unwrap();
            let (offset, bytes) = (FileOffset::new(0), FILE_BYTES);
            blocking.run(FileOp::Punch { offset, bytes }).unwrap();
            // The next case opens it again, and does not wait for a lock.
        }
    }
}

/// Completions that do not fit in a ring's completion queue wait in the kernel until the ring's
/// owner enters it. A queue that polls and never sleeps has to notice.
#[test]
fn more_completions_than_a_ring_has_room_for_come_without_a_sleep() {
    const REQUESTS: usize = 600;
    for case in cases() {
        let file = case.create();
        let mut buffer = AlignedBuf::zeroed(4096);
        // Buffered reads of cached data complete during submission.
        run(&mut Queue::new(&*file, DEPTH), write_op(0, 4096), &mut buffer).unwrap();
        let mut channel = Queue::new(&*file, QueueDepth(8));
        // SAFETY: buffer and list outlive the requests; all of them read the same bytes.
        let list = [unsafe { IoVec::of(&mut buffer) }];
        for tag in 0..REQUESTS {
            // SAFETY: as above.
            let memory = unsafe { MemoryList::new(&list) };
            channel.submit(FileRequest::new(read_op(0, 4096), memory, tag));
        }
        channel.kick();
        let (mut done, start) = (Vec::new(), Instant::now());
        while done.len() < REQUESTS {
            channel.reap(&mut done);
            assert!(start.elapsed() < flowstone_testkit::HANG, "{}: {}", case.name, done.len());
        }
        assert!(done.iter().all(|completion| completion.outcome.is_ok()), "{}", case.name);
    }
}
