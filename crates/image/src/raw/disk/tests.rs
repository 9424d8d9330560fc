use std::ops::Range;
use std::sync::Mutex;

use flowstone_block::{AlignedBuf, BlockingDisk, Doorbells, Errno, Op, Outcome, Request};
use flowstone_fileio::{FileChannel, FileCompletion, FileOp, FileRequest};

use super::*;

/// A file that takes everything, keeps a list of it, and completes nothing before it is told to.
#[derive(Clone, Default)]
struct Recorder {
    taken: Arc<Mutex<Vec<FileOp>>>,
    held: Arc<AtomicBool>,
    /// The next flush fails, as the kernel reports it: once.
    bad_sync: Arc<AtomicBool>,
}

struct RecorderChannel {
    file: Recorder,
    done: Vec<FileCompletion>,
}

impl Recorder {
    fn image(&self) -> RawImage {
        let file = Box::new(self.clone());
        RawImage::open(Path::new("t.raw"), file, DiscardMode::Deallocate, Access::Write).unwrap()
    }

    fn take(&self) -> Vec<FileOp> {
        std::mem::take(&mut self.taken.lock().unwrap())
    }
}

impl FileIo for Recorder {
    fn size(&self) -> io::Result<u64> {
        Ok(1 << 20)
    }

    fn set_size(&self, _bytes: u64) -> io::Result<()> {
        Ok(())
    }

    fn allocated_bytes(&self) -> io::Result<u64> {
        Ok(0)
    }

    fn next_data(&self, _from: FileOffset) -> io::Result<Option<Range<FileOffset>>> {
        Ok(None)
    }

    fn block_bytes(&self) -> u32 {
        512
    }

    fn describe(&self) -> String {
        "a test".into()
    }

    fn channel(&self, _depth: QueueDepth) -> io::Result<Box<dyn FileChannel>> {
        Ok(Box::new(RecorderChannel { file: self.clone(), done: Vec::new() }))
    }
}

impl FileChannel for RecorderChannel {
    fn submit(&mut self, request: FileRequest) {
        self.file.taken.lock().unwrap().push(request.op);
        let sync = request.op == FileOp::Datasync;
        let fails = sync && self.file.bad_sync.swap(false, Ordering::Relaxed);
        let outcome = if fails { Err(Errno::IO) } else { Ok(()) };
        self.done.push(FileCompletion { tag: request.tag, outcome });
    }

    fn kick(&mut self) {}

    fn reap(&mut self, done: &mut Vec<FileCompletion>) {
        if !self.file.held.load(Ordering::Relaxed) {
            done.append(&mut self.done);
        }
    }

    fn sleep(&mut self, _bells: &Doorbells<'_>) {}
}

fn extent(start: u64, count: u64) -> Extent {
    Extent::new(Sector::new(start), SectorCount::new(count)).unwrap()
}

fn submit(channel: &mut dyn Channel, op: Op, durable: bool) {
    let mut request = Request::new(op, 0);
    request.durable = durable;
    channel.submit(request);
    channel.kick();
}

fn reap(channel: &mut dyn Channel) -> Vec<Outcome> {
    let mut done = Vec::new();
    // Twice: the second step of a request completes after the first.
    channel.reap(&mut done);
    channel.reap(&mut done);
    done.iter().map(|completion| completion.outcome).collect()
}

#[test]
fn after_a_failed_flush_no_queue_promises_anything() {
    let file = Recorder::default();
    let image = file.image();
    let mut one = BlockingDisk::new(&image).unwrap();
    let mut other = BlockingDisk::new(&image).unwrap();
    file.bad_sync.store(true, Ordering::Relaxed);
    assert_eq!(one.run(Op::Flush), Err(Errno::IO));
    // The kernel would say yes now; the data may be gone all the same.
    assert_eq!(one.run(Op::Flush), Err(Errno::IO));
    assert_eq!(other.run(Op::Flush), Err(Errno::IO));
    let mut data = AlignedBuf::zeroed(4096);
    assert_eq!(other.write(Sector::new(0), &mut data), Ok(()));
    assert_eq!(other.read(Sector::new(0), &mut data), Ok(()));
}

#[test]
fn flushes_that_wait_together_share_one_and_its_failure() {
    let file = Recorder::default();
    let image = file.image();
    let mut channel = image.channel(QueueDepth(8)).unwrap();
    file.held.store(true, Ordering::Relaxed);
    (0..4).for_each(|_| submit(&mut *channel, Op::Flush, false));
    // The first has begun; the other three came too late for it.
    assert_eq!(file.take(), [FileOp::Datasync]);
    file.bad_sync.store(true, Ordering::Relaxed);
    file.held.store(false, Ordering::Relaxed);
    assert_eq!(reap(&mut *channel), [Ok(()), Err(Errno::IO), Err(Errno::IO), Err(Errno::IO)]);
    assert_eq!(file.take(), [FileOp::Datasync]);
}

#[test]
fn write_through_requests_are_durable_by_themselves() {
    let file = Recorder::default();
    let image = file.image();
    let mut channel = image.channel(QueueDepth(8)).unwrap();
    let offset = FileOffset::new(4096);
    submit(&mut *channel, Op::Write(extent(8, 1)), true);
    assert_eq!(reap(&mut *channel), [Ok(())]);
    assert_eq!(file.take(), [FileOp::Write { offset, bytes: 512, durable: true }]);
    submit(&mut *channel, Op::Discard(extent(8, 1)), true);
    assert_eq!(reap(&mut *channel), [Ok(())]);
    assert_eq!(file.take(), [FileOp::Punch { offset, bytes: 512 }, FileOp::Datasync]);
    let zeroes = Op::WriteZeroes { extent: extent(8, 1), unmap: false };
    submit(&mut *channel, zeroes, true);
    assert_eq!(reap(&mut *channel), [Ok(())]);
    assert_eq!(file.take(), [FileOp::Zero { offset, bytes: 512 }, FileOp::Datasync]);
    submit(&mut *channel, zeroes, false);
    assert_eq!(reap(&mut *channel), [Ok(())]);
    assert_eq!(file.take(), [FileOp::Zero { offset, bytes: 512 }]);
}

#[test]
fn discards_that_wait_together_become_few_calls_and_delay_nobody_else() {
    let file = Recorder::default();
    let image = file.image();
    let mut channel = image.channel(QueueDepth(32)).unwrap();
    let punch = |at, bytes| FileOp::Punch { offset: FileOffset::new(at), bytes };
    file.held.store(true, Ordering::Relaxed);
    // A lone one starts at once; the others wait for it, a write does not.
    submit(&mut *channel, Op::Discard(extent(800, 8)), false);
    (0..8).for_each(|n| submit(&mut *channel, Op::Discard(extent(n * 8, 8)), n == 3));
    let unmap = Op::WriteZeroes { extent: extent(64, 8), unmap: true };
    submit(&mut *channel, unmap, false);
    submit(&mut *channel, Op::Write(extent(0, 8)), false);
    let write = FileOp::Write { offset: FileOffset::new(0), bytes: 4096, durable: false };
    assert_eq!(file.take(), [punch(800 * 512, 4096), write]);
    assert_eq!(image.discards().waiting, 10);
    file.held.store(false, Ordering::Relaxed);
    // Nine made one; the durable one among them is not done before a flush.
    assert_eq!(reap(&mut *channel).len(), 2 + 8);
    assert_eq!(file.take(), [punch(0, 9 * 4096), FileOp::Datasync]);
    assert_eq!(reap(&mut *channel), [Ok(())]);
    let counted = image.discards();
    assert_eq!((counted.ranges, counted.merged, counted.waiting), (10, 2, 0));
    assert_eq!(counted.bytes, 10 * 4096);
}
