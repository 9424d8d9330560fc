//! Reads a disk's layout on a thread of its own: when the disk is attached, and when a write to a
//! definer has completed. No request waits for it, and without such a write there is no thread.

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use flowstone_block::{
    BlockingDisk, Geometry, Layer, LogBudget, Published, SECTOR_BYTES, Sector, lock, mutated,
};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tracing::{debug, warn};

use crate::layout::Layout;
use crate::recognise::recognise;
use crate::volume::ReadBytes;

/// Time between the end of one reading and the begin of the next: superblocks are written
/// occasionally while a file system is in use, and several times by mkfs.
const REST: Duration = Duration::from_secs(1);
/// Stack size; reading needs little.
const STACK_BYTES: usize = 256 << 10;
/// The disk is read in whole blocks of this size.
const BLOCK_BYTES: u64 = 4096;
/// A reading with an I/O error is repeated; meanwhile the layout stays as it is. After this many in
/// a row the readable part is used, and the interval grows.
const FAILURES_MAX: u32 = 3;
const REST_DOUBLINGS_MAX: u32 = 6;

/// Keeps the layout of one disk up to date. Dropping it waits for a running reading, for at most
/// the time of one request.
pub struct Watcher {
    disk: Arc<dyn Layer>,
    shared: Arc<Shared>,
}

/// Called with the bytes just read, and whether a guest's writes caused the reading: returns the
/// time to rest before the next read.
pub type Pace = Arc<dyn Fn(u64, bool) -> Duration + Send + Sync>;

struct Shared {
    layout: Arc<Published<Layout>>,
    pace: Pace,
    /// CPUs that the reading thread may run on. The thread that starts it may be pinned to a
    /// queue's CPU.
    cpus: Option<CpuSet>,
    state: Mutex<State>,
    /// Signalled when the state changes.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// A definer has changed since the last reading began.
    wanted: bool,
    stopped: bool,
    /// The end of the last reading.
    ended: Option<Instant>,
    /// A thread is reading, or about to.
    is_running: bool,
    /// Threads that still hold the disk. They are counted and detached: a finished thread that is
    /// to be joined keeps its stack.
    threads: u32,
    readings: u64,
    /// Consecutive readings with an I/O error.
    failures: u32,
    trouble: LogBudget,
}

impl State {
    /// Returns the time to wait before the next reading.
    fn rest(&self) -> Duration {
        let doublings = self.failures.saturating_sub(FAILURES_MAX - 1).min(REST_DOUBLINGS_MAX);
        REST * (1 << doublings)
    }

    /// Logs that a layout cannot be read for want of a thread or a ring. Rate-limited: a guest must
    /// not fill the log by rewriting its superblock.
    fn say(&mut self, error: &io::Error) {
        if let Some(unsaid) = self.trouble.spend() {
            warn!(%error, unsaid, "cannot read a disk's layout: its classes stay as they are");
        }
    }
}

impl Watcher {
    /// Starts the first reading of `disk`, whose result is published in `layout`.
    pub fn start(disk: Arc<dyn Layer>, layout: Arc<Published<Layout>>, pace: Pace) -> Self {
        let state = Mutex::new(State::default());
        let cpus = sched_getaffinity(None).ok();
        let shared = Arc::new(Shared { layout, pace, cpus, state, changed: Condvar::new() });
        let watcher = Self { disk, shared };
        watcher.read_again();
        watcher
    }

    /// Requests a reading, since a definer has changed.
    pub fn read_again(&self) {
        let mut state = lock(&self.shared.state);
        state.wanted = true;
        if state.is_running || state.stopped {
            return;
        }
        let (disk, shared) = (Arc::clone(&self.disk), Arc::clone(&self.shared));
        let builder = Builder::new().name("layout".into()).stack_size(STACK_BYTES);
        let run = move || {
            let ends = EndsThread(shared);
            // Dropped before the thread's end is reported, also by a panic: an image must not stay
            // open for longer than its watcher.
            let disk = disk;
            ends.0.run(&*disk);
        };
        match builder.spawn(run) {
            Ok(_) => (state.threads, state.is_running) = (state.threads + 1, true),
            // The next such write tries again.
            Err(error) => state.say(&error),
        }
    }

    /// Returns the number of readings.
    pub fn readings(&self) -> u64 {
        lock(&self.shared.state).readings
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let mut state = lock(&self.shared.state);
        state.stopped = true;
        self.shared.changed.notify_all();
        while state.threads > 0 {
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Reports the end of a thread, also by a panic. A panic has been logged; classes stay as they are.
struct EndsThread(Arc<Shared>);

impl Drop for EndsThread {
    fn drop(&mut self) {
        lock(&self.0.state).threads -= 1;
        self.0.changed.notify_all();
    }
}

impl Shared {
    fn run(&self, disk: &dyn Layer) {
        if let Some(cpus) = &self.cpus {
            // If that is refused, it shares a queue's CPU.
            let _ = sched_setaffinity(None, cpus);
        }
        while self.is_due() {
            let geometry = disk.geometry();
            let bytes = geometry.capacity.bytes();
            match BlockingDisk::new(disk) {
                Ok(disk) => {
                    let begin = Instant::now();
                    let (shared, piece, is_wanted) = (self, None, lock(&self.state).readings > 0);
                    let mut disk =
                        DiskBytes { disk, geometry, shared, piece, is_wanted, has_failed: false };
                    let layout = recognise(&mut disk, bytes);
                    let (regions, found) = (layout.regions(), layout.found().len());
                    debug!(regions, found, time = ?begin.elapsed(), "layout read");
                    self.publish(layout, disk.has_failed);
                }
                Err(error) => {
                    let mut state = lock(&self.state);
                    state.say(&error);
                    (state.failures, state.wanted) = (state.failures + 1, true);
                }
            }
            let mut state = lock(&self.state);
            state.ended = Some(Instant::now());
            state.readings += 1;
        }
    }

    fn publish(&self, mut layout: Layout, has_failed: bool) {
        let mut state = lock(&self.state);
        // A stopped reading is incomplete.
        if state.stopped {
            return;
        }
        state.failures = if has_failed { state.failures + 1 } else { 0 };
        state.wanted |= has_failed;
        let is_trusted = state.failures == 0;
        let is_trusted = mutated("classify.watcher.publishes-what-failed", is_trusted, true);
        if !is_trusted && state.failures < FAILURES_MAX {
            return;
        }
        let old = self.layout.get();
        // New definers may have been written before writes to them were watched.
        let has_new = !layout.has_definers_of(&old);
        let has_new = mutated("classify.watcher.reads-new-definers-once", has_new, false);
        state.wanted |= has_new;
        drop(state);
        let has_same_journals = layout.keep_list_of(&old);
        if !has_same_journals || *old != layout {
            self.layout.publish(layout);
        }
    }

    fn is_stopped(&self) -> bool {
        lock(&self.state).stopped
    }

    /// Rests for `time`, unless it is stopped.
    fn rest(&self, time: Duration) {
        if !time.is_zero() {
            let rests = |state: &mut State| !state.stopped;
            drop(self.changed.wait_timeout_while(lock(&self.state), time, rests));
        }
    }

    /// Waits until the next reading is due. Returns `false` if none is wanted, and the thread is to
    /// end.
    fn is_due(&self) -> bool {
        let mut state = lock(&self.state);
        while state.wanted && !state.stopped {
            let rest = state.rest();
            let since = state.ended.map_or(rest, |ended| ended.elapsed());
            let Some(left) = rest.checked_sub(since).filter(|left| !left.is_zero()) else {
                // Writes from now on may be missed by this reading.
                state.wanted = false;
                return true;
            };
            let woken = self.changed.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.is_running = false;
        false
    }
}

/// The disk in bytes. The last piece read is cached: the next read is often in it.
struct DiskBytes<'a> {
    disk: BlockingDisk,
    geometry: Geometry,
    shared: &'a Shared,
    /// Its first byte's offset, and its bytes.
    piece: Option<(u64, Vec<u8>)>,
    /// A guest's writes are the reason for this reading.
    is_wanted: bool,
    has_failed: bool,
}

impl ReadBytes for DiskBytes<'_> {
    fn block_bytes(&self) -> u64 {
        self.geometry.logical_block_bytes.into()
    }

    fn read(&mut self, at: u64, target: &mut [u8]) -> Option<()> {
        let end = at.checked_add(target.len() as u64)?;
        let is_kept =
            |(start, piece): &&(u64, Vec<u8>)| *start <= at && end <= start + piece.len() as u64;
        if self.piece.as_ref().filter(is_kept).is_none() {
            let capacity = self.geometry.capacity.bytes();
            let start = at / BLOCK_BYTES * BLOCK_BYTES;
            let bytes = end.next_multiple_of(BLOCK_BYTES).min(capacity).checked_sub(start)?;
            self.piece = None;
            self.piece = Some((start, self.fetch(start, bytes)?));
        }
        let (start, piece) = self.piece.as_ref()?;
        let from = piece.get((at - start) as usize..)?;
        target.copy_from_slice(from.get(..target.len())?);
        Some(())
    }
}

impl DiskBytes<'_> {
    fn fetch(&mut self, start: u64, bytes: u64) -> Option<Vec<u8>> {
        if self.shared.is_stopped() {
            return None;
        }
        let mut piece = vec![0; bytes as usize];
        let read = self.disk.read(Sector::new(start / SECTOR_BYTES), &mut piece);
        self.has_failed |= read.is_err();
        self.shared.rest((self.shared.pace)(bytes, self.is_wanted));
        read.ok().map(|()| piece)
    }
}
