//! When a queue may be dropped without waiting (`Channel::retire`), over a host that does not
//! answer until released: the same for every format.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use flowstone_block::{
    Channel, Completion, Extent, Layer, NextLook, Op, QueueContext, QueueDepth, Request, Sector,
    SectorCount,
};
use flowstone_fileio::{Access, FileChannel, FileCompletion, FileRequest};
use flowstone_sim::{SimDisk, Wrapped};

use flowstone_image::{DiscardMode, Format};
use flowstone_log::{self as log, LogImage, LogOptions};
use flowstone_log_format::SUPERBLOCK_AREA_BYTES;
use flowstone_qcow2::{self as qcow2, Opening, Qcow2Image, Qcow2Options};
use flowstone_raw::RawImage;
use flowstone_sim::wait_until;

/// A host that holds the requests of channels made after `hold()`.
#[derive(Default)]
struct Host {
    holds: AtomicBool,
    /// Number of requests still carried out while it holds.
    passes: AtomicUsize,
    /// Channels report requests in flight in the kernel.
    is_busy: AtomicBool,
}

struct HostChannel {
    host: Arc<Host>,
    is_held: bool,
    channel: Box<dyn FileChannel>,
    held: Vec<FileRequest>,
}

impl Host {
    /// Makes an empty file of this size on it.
    fn file(self: &Arc<Self>, bytes: u64) -> Box<Wrapped> {
        let host = Arc::clone(self);
        Box::new(Wrapped::new(&SimDisk::new(bytes), move |channel| {
            let (host, held) = (Arc::clone(&host), Vec::new());
            let is_held = host.holds.load(Ordering::Relaxed);
            HostChannel { host, is_held, channel, held }
        }))
    }

    fn hold(&self) {
        self.holds.store(true, Ordering::Relaxed);
    }

    fn release(&self) {
        self.holds.store(false, Ordering::Relaxed);
    }

    fn let_pass(&self, requests: usize) {
        self.passes.store(requests, Ordering::Relaxed);
    }
}

impl HostChannel {
    fn pass_on(&mut self) {
        let holds = self.is_held && self.host.holds.load(Ordering::Relaxed);
        let passes = if holds { self.host.passes.swap(0, Ordering::Relaxed) } else { usize::MAX };
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
        self.held.is_empty() && !self.host.is_busy.load(Ordering::Relaxed)
    }
}

/// A new image of a format over a host that holds all requests of queues from now on.
fn image(format: Format) -> (Arc<Host>, Box<dyn Layer>) {
    let capacity = SectorCount::new(8192);
    let host = Arc::<Host>::default();
    let (path, mode, access) = (Path::new("image"), DiscardMode::Deallocate, Access::Write);
    let image: Box<dyn Layer> = match format {
        Format::Raw => {
            let file = host.file(capacity.bytes());
            Box::new(RawImage::open(path, file, mode, access).unwrap())
        }
        Format::Qcow2 => {
            let file = host.file(0);
            qcow2::create("new", &*file, capacity, &Qcow2Options::default()).unwrap();
            Box::new(Qcow2Image::open(path, file, Opening::to(access)).unwrap())
        }
        Format::Log => {
            let file = host.file(SUPERBLOCK_AREA_BYTES);
            log::create("new", &*file, capacity, LogOptions::default()).unwrap();
            Box::new(LogImage::open(path, file, mode, access, None, None).unwrap())
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
        host.is_busy.store(true, Ordering::Relaxed);
        let early = queue.retire();
        host.is_busy.store(false, Ordering::Relaxed);
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
