//! The effect of each layer on the disk below it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod large_request;
mod zeroes;

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use flowstone_block::{
    BlockingDisk, Channel, Completion, Errno, Extent, Geometry, IoVec, Layer, NextLook, Op, OpKind,
    Outcome, QueueContext, QueueDepth, Request, Sector, SectorCount,
};
use flowstone_layers::{Delay, Errors, Log, Mem, Null, Passed, Stats, Verify};

fn mem() -> Arc<Mem> {
    Arc::new(Mem::new(SectorCount::new(2048)).unwrap())
}

fn extent(start: u64, count: u64) -> Extent {
    Extent::new(Sector::new(start), SectorCount::new(count)).unwrap()
}

#[test]
fn a_memory_disk_keeps_what_is_written_and_zeroes_what_is_discarded() {
    let mem = mem();
    let mut disk = BlockingDisk::new(&*mem).unwrap();
    let mut data = vec![0x5a; 64 * 512];
    disk.write(Sector::new(3), &mut data).unwrap();
    disk.run(Op::Discard(extent(5, 40))).unwrap();
    let mut back = vec![0; 64 * 512];
    // Another channel sees the same disk.
    BlockingDisk::new(&*mem).unwrap().read(Sector::new(3), &mut back).unwrap();
    assert!(back[..1024].iter().all(|byte| *byte == 0x5a));
    assert!(back[1024..42 * 512].iter().all(|byte| *byte == 0));
    assert!(back[42 * 512..].iter().all(|byte| *byte == 0x5a));
}

#[test]
fn random_delays_complete_out_of_order_and_lose_nothing() {
    let layer = Delay::new(mem(), "0-5ms".parse().unwrap());
    let context = QueueContext::alone(QueueDepth(64)).unwrap();
    let mut channel = layer.channel(&context).unwrap();
    for tag in 0..64 {
        channel.submit(Request::new(Op::Flush, tag));
    }
    channel.kick();
    let mut done: Vec<Completion> = Vec::new();
    while done.len() < 64 {
        channel.reap(&mut done);
        if done.len() < 64 {
            context.reactor.sleep(|| channel.next_look());
        }
    }
    let tags: Vec<u32> = done.iter().map(|completion| completion.request.tag).collect();
    let mut sorted = tags.clone();
    sorted.sort_unstable();
    assert!(sorted.iter().copied().eq(0..64));
    assert_ne!(tags, sorted, "64 random delays left the order as it was");
}

#[test]
fn a_fixed_delay_takes_its_time() {
    let layer = Delay::new(mem(), "2ms".parse().unwrap());
    let start = Instant::now();
    BlockingDisk::new(&layer).unwrap().run(Op::Flush).unwrap();
    assert!(start.elapsed() >= Duration::from_millis(2));
}

#[test]
fn errors_hit_the_named_operation_at_the_named_rate() {
    let base = Arc::new(Stats::new(mem()));
    let layer = Errors::new(base.clone(), "flush:enospc:3".parse().unwrap());
    let mut disk = BlockingDisk::new(&layer).unwrap();
    let outcomes: Vec<_> = (0..6).map(|_| disk.run(Op::Flush)).collect();
    let failed = Err(Errno::NOSPC);
    assert_eq!(outcomes, [Ok(()), Ok(()), failed, Ok(()), Ok(()), failed]);
    disk.write(Sector::new(0), &mut [0; 512]).unwrap();
    // Failed requests never reached the disk below.
    let counters = base.counters();
    let passed = |kind| {
        let Passed { requests, bytes, errors } = counters.of(kind);
        [requests, bytes, errors].map(|it| it.load(Ordering::Relaxed))
    };
    assert_eq!(passed(OpKind::Flush), [4, 0, 0]);
    assert_eq!(passed(OpKind::Write), [1, 512, 0]);
}

#[test]
fn the_log_has_a_line_for_each_request_and_each_completion() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("requests.log");
    let layer = Log::new(mem(), &path).unwrap();
    let mut disk = BlockingDisk::new(&layer).unwrap();
    disk.write(Sector::new(8), &mut [0; 512]).unwrap();
    disk.run(Op::Flush).unwrap();
    drop((disk, layer));
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4, "{text}");
    assert!(lines[0].contains("own submit 0 write sectors 8+1 priority 0x0"), "{text}");
    assert!(lines[3].ends_with("own finish 0 ok"), "{text}");
}

/// Regression: the queue waited for the file, and so did all disks of its poller.
#[test]
fn a_log_that_is_not_written_holds_up_no_request_and_says_what_it_has_lost() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pipe");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, mode).unwrap();
    let pipe = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    let layer = Log::new(mem(), &path).unwrap();
    let mut disk = BlockingDisk::new(&layer).unwrap();
    // Two lines each: more than the pipe and the layer take.
    for _ in 0..40_000 {
        disk.run(Op::Flush).unwrap();
    }
    let reader = std::thread::spawn(move || {
        let mut lines = io::BufRead::lines(io::BufReader::new(pipe));
        let (mut count, mut lost) = (0, 0);
        while count + lost < 80_000 {
            match lines.next().unwrap().unwrap().split_once(" lost ") {
                Some((_, number)) => lost += number.parse::<u64>().unwrap(),
                None => count += 1,
            }
        }
        (count, lost)
    });
    let (count, lost) = reader.join().unwrap();
    assert!(lost > 0 && count + lost == 80_000, "{count} lines and {lost} lost ones");
}

#[test]
fn verify_passes_good_data_and_catches_a_disk_that_lies() {
    let mem = mem();
    let layer = Verify::new(mem.clone());
    let mut disk = BlockingDisk::new(&layer).unwrap();
    let mut back = [0; 1024];
    disk.write(Sector::new(10), &mut [1; 1024]).unwrap();
    disk.read(Sector::new(10), &mut back).unwrap();
    // The disk is changed behind the layer's back.
    BlockingDisk::new(&*mem).unwrap().write(Sector::new(11), &mut [2; 512]).unwrap();
    assert_eq!(disk.read(Sector::new(10), &mut back), Err(Errno::IO));
    disk.read(Sector::new(10), &mut back[..512]).unwrap();
    // The content of a discarded sector is not known.
    disk.run(Op::Discard(extent(11, 1))).unwrap();
    disk.read(Sector::new(10), &mut back).unwrap();
}

/// A disk that carries out each batch in reverse order and completes it in order.
struct Backwards(Arc<Mem>);

struct BackwardsChannel {
    base: Box<dyn Channel>,
    #[expect(clippy::vec_box, reason = "requests travel in their boxes")]
    batch: Vec<Box<Request>>,
}

impl Layer for Backwards {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn channel(&self, context: &QueueContext) -> io::Result<Box<dyn Channel>> {
        Ok(Box::new(BackwardsChannel { base: self.0.channel(context)?, batch: Vec::new() }))
    }
}

impl Channel for BackwardsChannel {
    fn submit(&mut self, request: Box<Request>) {
        self.batch.push(request);
    }

    fn kick(&mut self) {
        self.batch.drain(..).rev().for_each(|request| self.base.submit(request));
        self.base.kick();
    }

    fn reap(&mut self, done: &mut Vec<Completion>) {
        let before = done.len();
        self.base.reap(done);
        done[before..].reverse();
    }

    fn next_look(&mut self) -> NextLook {
        self.kick();
        self.base.next_look()
    }
}

/// Submits requests in one batch, each with a buffer, and returns their outcomes.
fn run_at_once(layer: &Verify, requests: &mut [(Op, [u8; 512])]) -> Vec<Outcome> {
    let mut channel = layer.channel(&QueueContext::alone(QueueDepth(64)).unwrap()).unwrap();
    for (tag, (op, buffer)) in requests.iter_mut().enumerate() {
        let mut request = Request::new(*op, tag as u32);
        if matches!(op, Op::Read(_) | Op::Write(_)) {
            // SAFETY: the buffers outlive the requests, which all complete below.
            request.memory.push(unsafe { IoVec::of(buffer) });
        }
        channel.submit(request);
    }
    channel.kick();
    let mut done = Vec::new();
    channel.reap(&mut done);
    assert_eq!(done.len(), requests.len());
    done.iter().map(|completion| completion.outcome).collect()
}

#[test]
fn verify_does_not_judge_a_read_that_races_with_a_write() {
    let layer = Verify::new(Arc::new(Backwards(mem())));
    BlockingDisk::new(&layer).unwrap().write(Sector::new(0), &mut [1; 8 * 512]).unwrap();
    let reads = (0..8).map(|sector| (Op::Read(extent(sector, 1)), [0; 512]));
    let writes = (0..8).map(|sector| (Op::Write(extent(sector, 1)), [2; 512]));
    let mut requests: Vec<_> = reads.chain(writes).collect();
    let outcomes = run_at_once(&layer, &mut requests);
    assert!(requests.iter().all(|(_, buffer)| *buffer == [2; 512]), "the reads came second");
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
}

/// A write's content was taken as known although a discard of its sector was in flight with it.
#[test]
fn verify_does_not_trust_a_write_that_races_with_a_zeroing() {
    for listed_before in [false, true] {
        let mem = mem();
        let layer = Verify::new(Arc::new(Backwards(mem.clone())));
        let mut disk = BlockingDisk::new(&layer).unwrap();
        if listed_before {
            disk.write(Sector::new(5), &mut [1; 512]).unwrap();
        }
        let zero = Op::WriteZeroes { extent: extent(4, 8), unmap: false };
        let mut requests = [(zero, [0; 512]), (Op::Write(extent(5, 1)), [2; 512])];
        run_at_once(&layer, &mut requests);
        let mut back = [3; 512];
        disk.read(Sector::new(5), &mut back).unwrap();
        assert_eq!(back, [0; 512], "the zeroing came second");
        // The next write is alone, and its content is known again.
        disk.write(Sector::new(5), &mut [4; 512]).unwrap();
        disk.read(Sector::new(5), &mut back).unwrap();
        BlockingDisk::new(&*mem).unwrap().write(Sector::new(5), &mut [6; 512]).unwrap();
        assert_eq!(disk.read(Sector::new(5), &mut back), Err(Errno::IO));
    }
}

/// Of two concurrent writes, the one completed last was taken for the one on disk.
#[test]
fn verify_does_not_trust_writes_that_race_with_each_other() {
    let layer = Verify::new(Arc::new(Backwards(mem())));
    let write = Op::Write(extent(5, 1));
    run_at_once(&layer, &mut [(write, [1; 512]), (write, [2; 512])]);
    let mut back = [0; 512];
    BlockingDisk::new(&layer).unwrap().read(Sector::new(5), &mut back).unwrap();
    assert_eq!(back, [1; 512], "the first write came second");
}
