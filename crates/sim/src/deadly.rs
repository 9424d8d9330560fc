//! A host file for tests that makes a worker thread behind queues panic at its next request.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use flowstone_block::NextLook;
use flowstone_fileio::{FileChannel, FileCompletion, FileIo, FileOp, FileRequest};

use crate::{SimDisk, Wrapped};

/// See the module.
pub struct Deadly {
    disk: SimDisk,
    victim: Arc<Victim>,
}

/// Name of the thread that is to panic, and whether only at a sync (`true`) or at any request.
#[derive(Default)]
struct Victim(Mutex<Option<(&'static str, bool)>>);

struct DeadlyChannel {
    victim: Arc<Victim>,
    channel: Box<dyn FileChannel>,
}

impl Deadly {
    /// Wraps a disk.
    pub fn new(disk: &SimDisk) -> Self {
        Self { disk: disk.clone(), victim: Arc::default() }
    }

    /// Returns the disk as an image's file.
    pub fn file(&self) -> Box<dyn FileIo> {
        let victim = Arc::clone(&self.victim);
        let wrap = move |channel| DeadlyChannel { victim: Arc::clone(&victim), channel };
        Box::new(Wrapped::new(&self.disk, wrap))
    }

    /// The next request of the thread with this name panics.
    pub fn kill(&self, thread: &'static str) {
        *self.victim.lock() = Some((thread, false));
    }

    /// The next sync of the thread with this name panics.
    pub fn kill_at_sync(&self, thread: &'static str) {
        *self.victim.lock() = Some((thread, true));
    }

    /// Waits for the panic.
    pub fn wait(&self) {
        wait_until("the thread has died", || self.victim.lock().is_none());
    }
}

impl Victim {
    fn lock(&self) -> MutexGuard<'_, Option<(&'static str, bool)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn strike(&self, op: FileOp) {
        let name = thread::current().name().map(str::to_owned);
        // The lock is released before the panic: others take it.
        let struck = self.lock().take_if(|(it, at_sync)| {
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

impl FileChannel for DeadlyChannel {
    fn submit(&mut self, request: FileRequest) {
        self.victim.strike(request.op);
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
