//! A host file that lists what is done to it, and a clock that stands still until a test moves it.

use std::fmt::{Display, Write};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use flowstone_block::{Clock, NextLook, QueueContext, TimeSource, gather};
use flowstone_fileio::{FileChannel, FileCompletion, FileIo, FileOffset, FileOp, FileRequest};
use flowstone_sim::SimDisk;

/// Time that moves only when it is told to.
pub struct HeldTime {
    start: Instant,
    nanoseconds: AtomicU64,
}

impl HeldTime {
    fn new() -> Self {
        Self { start: Instant::now(), nanoseconds: AtomicU64::new(0) }
    }

    /// Moves the time on to `until`.
    pub fn advance(&self, until: Instant) {
        let passed = until.saturating_duration_since(self.start).as_nanos() as u64;
        self.nanoseconds.fetch_max(passed, Ordering::Relaxed);
    }
}

impl TimeSource for HeldTime {
    fn now(&self) -> Instant {
        self.start + Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed))
    }

    fn sleep(&self, time: Duration) {
        self.advance(self.now() + time);
    }
}

/// A simulated disk, its clock, and the list of what was done to it. A clone is the same host.
#[derive(Clone)]
pub struct Host {
    pub disk: SimDisk,
    pub time: Arc<HeldTime>,
    listing: Arc<Mutex<String>>,
}

impl Host {
    /// Takes a disk; what has happened to it so far is not listed.
    pub fn new(disk: &SimDisk) -> Self {
        Self { disk: disk.clone(), time: Arc::new(HeldTime::new()), listing: Arc::default() }
    }

    /// Adds a line to the list.
    pub fn list(&self, line: impl Display) {
        writeln!(self.listing.lock().unwrap(), "{line}").unwrap();
    }

    /// Lists the contents of the file as they are now.
    pub fn list_contents(&self) {
        let (bytes, allocated) = (self.disk.to_bytes(), self.disk.allocated_bytes().unwrap());
        let checksum = crc32c::crc32c(&bytes);
        self.list(format!("file {} of {} {checksum:08x}", allocated, bytes.len()));
    }

    /// Returns the list.
    pub fn listing(&self) -> String {
        self.listing.lock().unwrap().clone()
    }
}

impl FileIo for Host {
    fn size(&self) -> io::Result<u64> {
        self.disk.size()
    }

    fn set_size(&self, bytes: u64) -> io::Result<()> {
        self.list(format!("  size {bytes}"));
        self.disk.set_size(bytes)
    }

    fn allocated_bytes(&self) -> io::Result<u64> {
        self.disk.allocated_bytes()
    }

    fn next_data(&self, from: FileOffset) -> io::Result<Option<Range<FileOffset>>> {
        self.disk.next_data(from)
    }

    fn clock(&self) -> Clock {
        Clock::of(Arc::<HeldTime>::clone(&self.time))
    }

    fn heeds_dont_cache(&self) -> bool {
        true
    }

    fn block_bytes(&self) -> u32 {
        self.disk.block_bytes()
    }

    fn describe(&self) -> String {
        self.disk.describe()
    }

    fn channel(&self, context: &QueueContext) -> io::Result<Box<dyn FileChannel>> {
        Ok(Box::new(Listed { host: self.clone(), channel: self.disk.channel(context)? }))
    }
}

/// A channel that lists its requests in the order in which they are submitted.
struct Listed {
    host: Host,
    channel: Box<dyn FileChannel>,
}

impl FileChannel for Listed {
    fn submit(&mut self, request: FileRequest) {
        self.host.list(line_of(&request));
        self.channel.submit(request);
    }

    fn kick(&mut self) {
        self.channel.kick();
    }

    fn reap(&mut self, done: &mut Vec<FileCompletion>) {
        self.channel.reap(done);
    }

    fn next_look(&mut self) -> NextLook {
        self.channel.next_look()
    }
}

/// Kind, offset, length, and what else the file is told; for a write, the checksum of its data.
fn line_of(request: &FileRequest) -> String {
    let named = |name: &str, offset: FileOffset, bytes: u64| {
        let cache = if request.dont_cache { " uncached" } else { "" };
        let first = if request.is_first { " first" } else { "" };
        format!("  {name} {}+{bytes}{cache}{first}", offset.get())
    };
    match request.op {
        FileOp::Read { offset, bytes } => named("read", offset, bytes),
        FileOp::Write { offset, bytes, durable } => {
            let mut data = vec![0; bytes as usize];
            gather(request.memory.pieces(), 0, &mut data);
            let durable = if durable { " durable" } else { "" };
            format!("{}{durable} {:08x}", named("write", offset, bytes), crc32c::crc32c(&data))
        }
        FileOp::Datasync => "  sync".into(),
        FileOp::Punch { offset, bytes } => named("punch", offset, bytes),
        FileOp::Discard { offset, bytes } => named("discard", offset, bytes),
        FileOp::Clear { offset, bytes } => named("clear", offset, bytes),
        FileOp::Zero { offset, bytes } => named("zero", offset, bytes),
        FileOp::Allocate { offset, bytes } => named("allocate", offset, bytes),
    }
}
