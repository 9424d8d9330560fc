mod promises;
mod waiting;

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use flowstone_block::{
    AlignedBuf, BlockingDisk, Errno, IoVec, NextLook, Op, Outcome, QueueContext, QueueDepth,
    Request,
};
use flowstone_fileio::{FileChannel, FileCompletion, FileOp, FileRequest};
use flowstone_sim::{Call, Fault, SimDisk};

use super::*;

/// A file that accepts and records all requests, and completes none until released.
#[derive(Clone, Default)]
struct Recorder {
    taken: Arc<Mutex<Vec<FileOp>>>,
    /// Sizes that were set, each with the number of requests recorded by then.
    sizes: Arc<Mutex<Vec<(u64, usize)>>>,
    held: Arc<AtomicBool>,
    /// Whether the next flush fails; reported once, like the kernel does.
    bad_sync: Arc<AtomicBool>,
    /// Error of the next write that is durable by itself (`true`), or is not.
    bad_write: Arc<Mutex<Option<(bool, Errno)>>>,
    /// Whether the next write fails before it is submitted to the host.
    refused: Arc<AtomicBool>,
    /// Offset at which punches fail.
    bad_punch: Arc<Mutex<Option<FileOffset>>>,
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

    fn set_size(&self, bytes: u64) -> io::Result<()> {
        self.sizes.lock().unwrap().push((bytes, self.taken.lock().unwrap().len()));
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

    fn channel(&self, _context: &QueueContext) -> io::Result<Box<dyn FileChannel>> {
        Ok(Box::new(RecorderChannel { file: self.clone(), done: Vec::new() }))
    }
}

impl FileChannel for RecorderChannel {
    fn submit(&mut self, request: FileRequest) {
        self.file.taken.lock().unwrap().push(request.op);
        let sync = request.op == FileOp::Datasync;
        let fails = sync && self.file.bad_sync.swap(false, Ordering::Relaxed);
        let bad = *self.file.bad_punch.lock().unwrap();
        let hit = |bad: FileOffset| match request.op {
            FileOp::Discard { offset, bytes } => offset <= bad && bad < offset.forward(bytes),
            _ => false,
        };
        let fails = fails || bad.is_some_and(hit);
        let mut outcome = if fails { Err(Errno::IO) } else { Ok(()) };
        if let FileOp::Write { durable, .. } = request.op {
            let bad = self.file.bad_write.lock().unwrap().take_if(|(bad, _)| *bad == durable);
            outcome = bad.map_or(outcome, |(_, errno)| Err(errno));
        }
        let refused = self.file.refused.swap(false, Ordering::Relaxed);
        self.done.push(match refused {
            true => FileCompletion::refused(request.tag, Errno::NOMEM),
            false => FileCompletion::new(request.tag, outcome),
        });
    }

    fn kick(&mut self) {}

    fn reap(&mut self, done: &mut Vec<FileCompletion>) {
        if !self.file.held.load(Ordering::Relaxed) {
            done.append(&mut self.done);
        }
    }

    fn next_look(&mut self) -> NextLook {
        NextLook::now_if(!self.done.is_empty())
    }
}

fn extent(start: u64, count: u64) -> Extent {
    Extent::new(Sector::new(start), SectorCount::new(count)).unwrap()
}

fn queue(image: &RawImage, depth: u16) -> Box<dyn Channel> {
    image.channel(&QueueContext::alone(QueueDepth(depth)).unwrap()).unwrap()
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

/// Waits for `count` completions, some of which come from other threads.
fn wait(channel: &mut dyn Channel, count: usize) -> Vec<Outcome> {
    let mut done = Vec::new();
    while done.len() < count {
        done.append(&mut reap(channel));
        std::thread::yield_now();
    }
    done
}

#[test]
fn after_a_failed_flush_no_queue_promises_anything() {
    let file = Recorder::default();
    let image = file.image();
    let mut one = BlockingDisk::new(&image).unwrap();
    let mut other = BlockingDisk::new(&image).unwrap();
    file.bad_sync.store(true, Ordering::Relaxed);
    assert_eq!(one.run(Op::Flush), Err(Errno::IO));
    // The kernel would report success now; the data may be gone all the same.
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
    let mut channel = queue(&image, 8);
    file.held.store(true, Ordering::Relaxed);
    (0..4).for_each(|_| submit(&mut *channel, Op::Flush, false));
    // The first has begun; the other three came too late for it.
    assert_eq!(file.take(), [FileOp::Datasync]);
    file.bad_sync.store(true, Ordering::Relaxed);
    file.held.store(false, Ordering::Relaxed);
    assert_eq!(reap(&mut *channel), [Ok(()), Err(Errno::IO), Err(Errno::IO), Err(Errno::IO)]);
    assert_eq!(file.take(), [FileOp::Datasync]);
}

/// The leading queue syncs for all of them, and then for those that came too late.
#[test]
fn flushes_of_several_queues_share_one_and_its_failure() {
    let file = Recorder::default();
    let image = file.image();
    let mut queues = [(); 3].map(|()| queue(&image, 8));
    file.held.store(true, Ordering::Relaxed);
    for n in [0, 1, 2, 1] {
        submit(&mut *queues[n], Op::Flush, false);
    }
    let [mut leader, mut second, mut third] = queues;
    assert_eq!(file.take(), [FileOp::Datasync], "three came too late for it");
    file.held.store(false, Ordering::Relaxed);
    let mut done = Vec::new();
    leader.reap(&mut done);
    assert_eq!(done.len(), 1);
    assert_eq!(file.take(), [FileOp::Datasync], "one for the three");
    assert_eq!([reap(&mut *second), reap(&mut *third)], [[], []], "it is not back yet");
    assert_eq!(reap(&mut *leader), [], "what it leads is for others");
    assert_eq!(reap(&mut *second), [Ok(()), Ok(())]);
    assert_eq!(reap(&mut *third), [Ok(())]);
    file.bad_sync.store(true, Ordering::Relaxed);
    submit(&mut *third, Op::Flush, false);
    submit(&mut *leader, Op::Flush, false);
    assert_eq!(file.take(), [FileOp::Datasync]);
    assert_eq!(reap(&mut *third), [Err(Errno::IO)]);
    assert_eq!(reap(&mut *leader), [Err(Errno::IO)]);
}

/// Other queues wait for the sync that a queue leads.
#[test]
fn a_queue_that_goes_away_finishes_the_sync_that_it_leads() {
    let file = Recorder::default();
    let image = file.image();
    let [mut leader, mut other] = [(); 2].map(|()| queue(&image, 8));
    submit(&mut *leader, Op::Flush, false);
    submit(&mut *other, Op::Flush, false);
    drop(leader);
    assert_eq!(file.take(), [FileOp::Datasync], "it goes on for others");
    assert_eq!(reap(&mut *other), [Ok(())]);
    assert_eq!(file.take(), [FileOp::Datasync]);
}

#[test]
fn write_through_requests_are_durable_by_themselves() {
    let file = Recorder::default();
    let image = file.image();
    let mut channel = queue(&image, 8);
    let offset = FileOffset::new(4096);
    submit(&mut *channel, Op::Write(extent(8, 1)), true);
    assert_eq!(reap(&mut *channel), [Ok(())]);
    assert_eq!(file.take(), [FileOp::Write { offset, bytes: 512, durable: true }]);
    submit(&mut *channel, Op::Discard(extent(8, 1)), true);
    assert_eq!(wait(&mut *channel, 1), [Ok(())]);
    assert_eq!(file.take(), [FileOp::Discard { offset, bytes: 512 }, FileOp::Datasync]);
    let zeroes = Op::WriteZeroes { extent: extent(8, 1), unmap: false };
    submit(&mut *channel, zeroes, true);
    assert_eq!(reap(&mut *channel), [Ok(())]);
    assert_eq!(file.take(), [FileOp::Zero { offset, bytes: 512 }, FileOp::Datasync]);
    submit(&mut *channel, zeroes, false);
    assert_eq!(reap(&mut *channel), [Ok(())]);
    assert_eq!(file.take(), [FileOp::Zero { offset, bytes: 512 }]);
}

#[test]
fn discards_that_wait_together_become_few_calls_and_delay_nothing_else() {
    let file = Recorder::default();
    let image = file.image();
    let mut queues = [(); 2].map(|()| queue(&image, 32));
    let punch = |at, bytes| FileOp::Discard { offset: FileOffset::new(at), bytes };
    file.held.store(true, Ordering::Relaxed);
    // A lone one starts at once; those of both queues wait for it, a write does not.
    submit(&mut *queues[0], Op::Discard(extent(800, 8)), false);
    while file.taken.lock().unwrap().is_empty() {
        std::thread::yield_now();
    }
    for n in 0..8 {
        submit(&mut *queues[n % 2], Op::Discard(extent(n as u64 * 8, 8)), n == 3);
    }
    let unmap = Op::WriteZeroes { extent: extent(64, 8), unmap: true };
    submit(&mut *queues[0], unmap, false);
    submit(&mut *queues[0], Op::Write(extent(0, 8)), false);
    let write = FileOp::Write { offset: FileOffset::new(0), bytes: 4096, durable: false };
    assert_eq!(file.take(), [punch(800 * 512, 4096), write]);
    assert_eq!(image.discards().waiting, 10);
    file.held.store(false, Ordering::Relaxed);
    assert_eq!(wait(&mut *queues[0], 1 + 4 + 1 + 1).len(), 7);
    // Nine were merged into one; the durable one among them does not complete before a flush.
    assert_eq!(wait(&mut *queues[1], 4).len(), 4);
    assert_eq!(file.take(), [punch(0, 9 * 4096), FileOp::Datasync]);
    let counted = image.discards();
    assert_eq!((counted.ranges, counted.merged, counted.waiting), (10, 2, 0));
    assert_eq!(counted.bytes, 10 * 4096);
}

#[test]
fn ranges_that_share_a_failure_are_tried_by_themselves() {
    let file = Recorder::default();
    let image = file.image();
    let mut channel = queue(&image, 8);
    *file.bad_punch.lock().unwrap() = Some(FileOffset::new(4096));
    for start in [0, 8, 16] {
        channel.submit(Request::new(Op::Discard(extent(start, 8)), start as u32));
    }
    channel.kick();
    let mut done = Vec::new();
    while done.len() < 3 {
        channel.reap(&mut done);
        std::thread::yield_now();
    }
    done.sort_by_key(|completion| completion.request.tag);
    let outcomes: Vec<Outcome> = done.iter().map(|completion| completion.outcome).collect();
    assert_eq!(outcomes, [Ok(()), Err(Errno::IO), Ok(())]);
}

/// A queue must not be dropped before its discards complete: the next guest may be writing there.
#[test]
fn a_queue_that_goes_away_waits_for_its_discards() {
    let file = Recorder::default();
    let image = file.image();
    let mut channel = queue(&image, 8);
    (0..4).for_each(|n| submit(&mut *channel, Op::Discard(extent(n * 16, 8)), false));
    drop(channel);
    assert_eq!(file.take().len(), 4);
    assert_eq!(image.discards().waiting, 0);
}

fn raw(disk: &SimDisk) -> RawImage {
    let file = Box::new(disk.clone());
    RawImage::open(Path::new("t.raw"), file, DiscardMode::Deallocate, Access::Write).unwrap()
}

/// A read that fails has lost nothing, so a write-through disk goes on taking writes.
#[test]
fn a_failed_read_of_a_write_through_disk_does_not_stop_writes() {
    let disk = SimDisk::new(1 << 20);
    let image = raw(&disk);
    let mut channel = queue(&image, 4);
    let mut memory = AlignedBuf::zeroed(512);
    let mut run = |op| {
        let mut request = Request::new(op, 0);
        request.durable = true;
        // SAFETY: the memory outlives the request, which completes below.
        request.memory.extend(op.extent().map(|_| unsafe { IoVec::of(&mut memory) }));
        channel.submit(request);
        channel.kick();
        wait(&mut *channel, 1)[0]
    };
    disk.inject(Fault::fail(Errno::IO).on(Call::Read));
    assert_eq!(run(Op::Read(extent(64, 1))), Err(Errno::IO));
    assert_eq!(run(Op::Write(extent(0, 1))), Ok(()));
    assert_eq!(run(Op::Flush), Ok(()));
    // A failed write may have lost data.
    disk.inject(Fault::fail(Errno::IO).on(Call::Write));
    assert_eq!(run(Op::Write(extent(0, 1))), Err(Errno::IO));
    assert_eq!(run(Op::Flush), Err(Errno::IO));
}

/// dm-crypt, a thin volume, some SSDs: discarded ranges hold arbitrary data. Zeroes must be written
/// there, and a discard must not follow them.
#[test]
fn zeroes_are_zeroes_on_a_device_that_holds_anything_after_a_discard() {
    let disk = SimDisk::from_bytes(&[7; 1 << 20]);
    disk.leave_garbage_after_discards(1);
    let image = raw(&disk);
    let mut guest = BlockingDisk::new(&image).unwrap();
    for unmap in [false, true] {
        let zeroed = extent(16, 64);
        guest.run(Op::WriteZeroes { extent: zeroed, unmap }).unwrap();
        guest.run(Op::Discard(extent(128, 64))).unwrap();
        let mut found = vec![1; 64 * 512];
        guest.read(zeroed.start(), &mut found).unwrap();
        assert!(found.iter().all(|byte| *byte == 0), "unmap {unmap}");
        guest.write(zeroed.start(), &mut [7; 64 * 512]).unwrap();
    }
    let mut found = vec![0; 64 * 512];
    guest.read(Sector::new(128), &mut found).unwrap();
    assert!(found.iter().any(|byte| *byte != 7 && *byte != 0), "the device was not told");
    drop(guest);
    let refused = image.compact(&mut |_, _| {}).unwrap_err().to_string();
    assert!(refused.contains("cannot give space back"), "{refused}");
}
