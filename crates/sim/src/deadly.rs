//! A host file for tests that makes a worker thread behind queues panic at its next request.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use flowstone_block::{NextLook, QueueContext};
use flowstone_fileio::{FileChannel, FileCompletion, FileIo, FileOffset, FileOp, FileRequest};

use crate::SimDisk;

/// See the module.
#[derive(Clone)]
pub struct Deadly {
    disk: SimDisk,
    /// Name of the thread that is to panic, and whether only at a sync (`true`) or at any request.
    victim: Arc<Mutex<Option<(&'static str, bool)>>>,
}

struct DeadlyChannel {
    file: Deadly,
    channel: Box<dyn FileChannel>,
}

impl Deadly {
    /// Wraps a disk.
    pub fn new(disk: &SimDisk) -> Self {
        Self { disk: disk.clone(), victim: Arc::default() }
    }

    /// The next request of the thread with this name panics.
    pub fn kill(&self, thread: &'static str) {
        *self.victim() = Some((thread, false));
    }

    /// The next sync of the thread with this name panics.
    pub fn kill_at_sync(&self, thread: &'static str) {
        *self.victim() = Some((thread, true));
    }

    /// Waits for the panic.
    pub fn wait(&self) {
        wait_until("the thread has died", || self.victim().is_none());
    }

    fn victim(&self) -> MutexGuard<'_, Option<(&'static str, bool)>> {
        self.victim.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn strike(&self, op: FileOp) {
        let name = thread::current().name().map(str::to_owned);
        // The lock is released before the panic: others take it.
        let struck = self.victim().take_if(|(it, at_sync)| {
            Some(*it) == name.as_deref() && (!*at_sync || op == FileOp::Datasync)
        });
        assert!(struck.is_none(), "a test's own panic");
    }
}

/// Waits until another thread has made `is_so` true; a minute without that is a hang.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(60), "not so after a minute: {what}");
        thread::yield_now();
    }
}

impl FileIo for Deadly {
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
        let channel = self.disk.channel(context)?;
        Ok(Box::new(DeadlyChannel { file: self.clone(), channel }))
    }
}

impl FileChannel for DeadlyChannel {
    fn submit(&mut self, request: FileRequest) {
        self.file.strike(request.op);
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
