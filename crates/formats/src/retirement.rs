//! When a queue may be dropped without waiting (`Channel::retire`), over a host that does not
//! answer until released: the same for every format.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use flowstone_block::{
    Channel, Completion, Extent, Layer, NextLook, Op, QueueContext, QueueDepth, Request, Sector,
    SectorCount,
};
use flowstone_fileio::{Access, FileChannel, FileCompletion, FileIo, FileOffset, FileRequest};
use flowstone_sim::SimDisk;

use flowstone_image::{DiscardMode, Format};
use flowstone_log::{self as log, LogImage, LogOptions};
use flowstone_log_format::SUPERBLOCK_AREA_BYTES;
use flowstone_qcow2::{self as qcow2, Memory, Qcow2Image, Qcow2Options};
use flowstone_raw::RawImage;
use flowstone_sim::wait_until;

/// A host file that holds the requests of channels made after `hold()`.
#[derive(Clone)]
struct Host {
    disk: SimDisk,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    holds: AtomicBool,
    /// Number of requests still carried out while it holds.
    passes: AtomicUsize,
    /// Channels report requests in flight in the kernel.
    is_busy: AtomicBool,
}

struct HostChannel {
    state: Arc<State>,
    is_held: bool,
    channel: Box<dyn FileChannel>,
    held: Vec<FileRequest>,
}

impl Host {
    fn hold(&self) {
        self.state.holds.store(true, Ordering::Relaxed);
    }

    fn release(&self) {
        self.state.holds.store(false, Ordering::Relaxed);
    }

    fn let_pass(&self, requests: usize) {
        self.state.passes.store(requests, Ordering::Relaxed);
    }
}

impl FileIo for Host {
    fn size(&self) -> io::Result<u64> {
        self.disk.size()
    }

    fn set_size(&self, bytes: u64) -> io::Result<()> {
        self.disk.set_size(bytes)
    }

    fn allocated_bytes(&self) -> io::Result<u64> {
        self.disk.allocated_bytes()
    }

    fn next_data(&self, from: FileOffset) -> io::Result<Option<Range<FileOffset>>> {
        self.disk.next_data(from)
    }

    fn block_bytes(&self) -> u32 {
        self.disk.block_bytes()
    }

    fn describe(&self) -> String {
        self.disk.describe()
    }

    fn channel(&self, context: &QueueContext) -> io::Result<Box<dyn FileChannel>> {
        let (state, channel) = (Arc::clone(&self.state), self.disk.channel(context)?);
        let is_held = state.holds.load(Ordering::Relaxed);
        Ok(Box::new(HostChannel { state, is_held, channel, held: Vec::new() }))
    }
}

impl HostChannel {
    fn pass_on(&mut self) {
        let holds = self.is_held && self.state.holds.load(Ordering::Relaxed);
        let passes = if holds { self.state.passes.swap(0, Ordering::Relaxed) } else { usize::MAX };
        let count = passes.min(self.held.len());
        self.held.drain(..count).for_each(|request| self.channel.submit(request));
        self.channel.kick();
    }
}

impl FileChannel for HostChannel {
    fn submit(&mut self, request: FileRequest) {
        self.held.push(request);
    }

    fn kick(&mut self) {}

    fn reap(&mut self, done: &mut Vec<FileCompletion>) {
        self.pass_on();
        self.channel.reap(done);
    }

    fn next_look(&mut self) -> NextLook {
        match self.held.is_empty() {
            true => self.channel.next_look(),
            false => NextLook::At(Instant::now() + Duration::from_millis(1)),
        }
    }

    fn is_idle(&self) -> bool {
        self.held.is_empty() && !self.state.is_busy.load(Ordering::Relaxed)
    }
}

/// A new image of a format over a host that holds all requests of queues from now on.
fn image(format: Format) -> (Host, Box<dyn Layer>) {
    let capacity = SectorCount::new(8192);
    let host = |bytes| Host { disk: SimDisk::new(bytes), state: Arc::default() };
    let (path, mode, access) = (Path::new("image"), DiscardMode::Deallocate, Access::Write);
    let (host, image): (Host, Box<dyn Layer>) = match format {
        Format::Raw => {
            let host = host(capacity.bytes());
            let file = Box::new(host.clone());
            (host, Box::new(RawImage::open(path, file, mode, access).unwrap()))
        }
        Format::Qcow2 => {
            let host = host(0);
            qcow2::create("new", &host, capacity, &Qcow2Options::default()).unwrap();
            let file = Box::new(host.clone());
            let image = Qcow2Image::open(path, file, None, mode, access, Memory::None).unwrap();
            (host, Box::new(image))
        }
        Format::Log => {
            let host = host(SUPERBLOCK_AREA_BYTES);
            log::create("new", &host, capacity, LogOptions::default()).unwrap();
            let file = Box::new(host.clone());
            (host, Box::new(LogImage::open(path, file, mode, access, None, None).unwrap()))
        }
    };
    host.hold();
    (host, image)
}

fn queue(image: &dyn Layer) -> Box<dyn Channel> {
    image.channel(&QueueContext::alone(QueueDepth(8)).unwrap()).unwrap()
}

fn submit(queue: &mut dyn Channel, op: Op) {
    queue.submit(Request::new(op, 0));
    queue.kick();
}

fn comes_back(queue: &mut dyn Channel) -> Completion {
    let mut done = Vec::new();
    wait_until("it comes back", || {
        let _ = queue.next_look();
        queue.reap(&mut done);
        !done.is_empty()
    });
    done.remove(0)
}

const FORMATS: [Format; 3] = [Format::Raw, Format::Qcow2, Format::Log];

/// A queue that was stopped went on with syncs for others, as long as these flushed: it was never
/// dropped, and the stop of its disk hung.
#[test]
fn a_queue_that_retires_leaves_the_lead_to_one_that_waits() {
    for format in FORMATS {
        let (host, image) = image(format);
        let [mut leader, mut other] = [(); 2].map(|()| queue(&*image));
        submit(&mut *leader, Op::Flush);
        submit(&mut *other, Op::Flush);
        let early = leader.retire();
        host.let_pass(1);
        // Its own sync is back now, and the next one is for the other queue.
        let retires = leader.retire() || leader.retire();
        host.release();
        assert!(!early, "{format}: its sync is with the host");
        assert!(retires, "{format}: it leads for others");
        drop(leader);
        assert_eq!(comes_back(&mut *other).outcome, Ok(()), "{format}");
    }
}

/// Requests that a panicked queue has lost track of may still be in flight in the kernel: the drop
/// of its file would wait for them, on a thread that serves other disks too.
#[test]
fn a_queue_does_not_retire_before_its_file_has_everything_back() {
    for format in FORMATS {
        let (host, image) = image(format);
        let mut queue = queue(&*image);
        host.state.is_busy.store(true, Ordering::Relaxed);
        let early = queue.retire();
        host.state.is_busy.store(false, Ordering::Relaxed);
        host.release();
        assert!(!early && queue.retire(), "{format}");
    }
}

/// A discard of a raw image is carried out by another thread: the drop of its queue waits for it.
#[test]
fn a_queue_does_not_retire_before_its_discards_are_back() {
    let (host, image) = image(Format::Raw);
    let mut queue = queue(&*image);
    let extent = Extent::new(Sector::new(0), SectorCount::new(8)).unwrap();
    submit(&mut *queue, Op::Discard(extent));
    let early = queue.retire();
    host.release();
    assert!(!early);
    wait_until("the discard is back", || queue.retire());
}
