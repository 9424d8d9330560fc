//! Reads a disk's layout on a thread of its own: when the disk is attached, and when a write to
//! what defines the layout has completed. No request waits for it, and without such a write there
//! is no thread.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use flowstone_block::{
    BlockingDisk, Geometry, Layer, LogBudget, Published, SECTOR_BYTES, Sector, mutant,
};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tracing::{debug, warn};

use crate::layout::Layout;
use crate::recognise::recognise;
use crate::volume::ReadBytes;

/// Between the end of one reading and the begin of the next: superblocks are written now and then
/// while a file system is in use, and by mkfs several times.
const REST: Duration = Duration::from_secs(1);
/// Reading needs little.
const STACK_BYTES: usize = 256 << 10;
/// What is read from the disk is whole blocks of this size.
const BLOCK_BYTES: u64 = 4096;
/// A reading that met an error is done again; the layout stays as it is meanwhile. After so many in
/// a row, what can be read counts, and the next ones are further and further apart.
const FAILURES_MAX: u32 = 3;
const REST_DOUBLINGS_MAX: u32 = 6;

/// Keeps the layout of one disk up to date. Dropping it waits for a reading that is on its way, for
/// as long as one request takes.
pub struct Watcher {
    disk: Arc<dyn Layer>,
    shared: Arc<Shared>,
}

/// Told of so many bytes that have been read, and whether a guest's writes are the reason: says how
/// long to rest before the next read.
pub type Pace = Arc<dyn Fn(u64, bool) -> Duration + Send + Sync>;

struct Shared {
    layout: Arc<Published<Layout>>,
    pace: Pace,
    /// Where the thread may run. The one that starts it may be pinned to a queue's CPU.
    cpus: Option<CpuSet>,
    state: Mutex<State>,
    /// Rings when the state changes.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// There is something to be read that the last reading has not seen.
    wanted: bool,
    stopped: bool,
    /// When the last reading ended.
    ended: Option<Instant>,
    /// A thread reads, or is about to.
    is_running: bool,
    /// Threads that have not let the disk go. They are not joined: what has ended and is not joined
    /// keeps its stack.
    threads: u32,
    readings: u64,
    /// Readings in a row that met an error.
    failures: u32,
    trouble: LogBudget,
}

impl State {
    /// Before the next reading.
    fn rest(&self) -> Duration {
        let doublings = self.failures.saturating_sub(FAILURES_MAX - 1).min(REST_DOUBLINGS_MAX);
        REST * (1 << doublings)
    }

    /// Reports that a layout cannot be read for want of a thread or a ring. A guest must not fill
    /// the log by writing its superblock again and again.
    fn say(&mut self, error: &io::Error) {
        if let Some(unsaid) = self.trouble.spend() {
            warn!(%error, unsaid, "cannot read a disk's layout: its classes stay as they are");
        }
    }
}

impl Watcher {
    /// Reads the layout of `disk` for the first time, and publishes it there.
    pub fn start(disk: Arc<dyn Layer>, layout: Arc<Published<Layout>>, pace: Pace) -> Self {
        let state = Mutex::new(State::default());
        let cpus = sched_getaffinity(None).ok();
        let shared = Arc::new(Shared { layout, pace, cpus, state, changed: Condvar::new() });
        let watcher = Self { disk, shared };
        watcher.read_again();
        watcher
    }

    /// Something that defines the layout has changed.
    pub fn read_again(&self) {
        let mut state = self.shared.state();
        state.wanted = true;
        if state.is_running || state.stopped {
            return;
        }
        let (disk, shared) = (Arc::clone(&self.disk), Arc::clone(&self.shared));
        let builder = Builder::new().name("layout".into()).stack_size(STACK_BYTES);
        let run = move || {
            let ends = EndsThread(shared);
            // Before it is said that the thread has ended, also by a panic: an image must not stay
            // open for longer than its watcher.
            let disk = disk;
            ends.0.run(&*disk);
        };
        match builder.spawn(run) {
            Ok(_) => (state.threads, state.is_running) = (state.threads + 1, true),
            // The next such write asks again.
            Err(error) => state.say(&error),
        }
    }

    /// How often the layout has been read.
    pub fn readings(&self) -> u64 {
        self.shared.state().readings
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.stopped = true;
        self.shared.changed.notify_all();
        while state.threads > 0 {
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Says that a thread has ended, however that ends. A panic has been reported; classes stay as they
/// are.
struct EndsThread(Arc<Shared>);

impl Drop for EndsThread {
    fn drop(&mut self) {
        self.0.state().threads -= 1;
        self.0.changed.notify_all();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

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
                    let (shared, piece, is_wanted) = (self, None, self.state().readings > 0);
                    let mut disk =
                        DiskBytes { disk, geometry, shared, piece, is_wanted, has_failed: false };
                    let layout = recognise(&mut disk, bytes);
                    let (regions, found) = (layout.regions(), layout.found().len());
                    debug!(regions, found, time = ?begin.elapsed(), "layout read");
                    self.publish(layout, disk.has_failed);
                }
                Err(error) => {
                    let mut state = self.state();
                    state.say(&error);
                    (state.failures, state.wanted) = (state.failures + 1, true);
                }
            }
            let mut state = self.state();
            state.ended = Some(Instant::now());
            state.readings += 1;
        }
    }

    fn publish(&self, mut layout: Layout, has_failed: bool) {
        let mut state = self.state();
        // A reading that was stopped has not seen all.
        if state.stopped {
            return;
        }
        state.failures = if has_failed { state.failures + 1 } else { 0 };
        state.wanted |= has_failed;
        let is_trusted = state.failures == 0 || mutant("classify.watcher.publishes-what-failed");
        if !is_trusted && state.failures < FAILURES_MAX {
            return;
        }
        let old = self.layout.get();
        // What a new definer covers may have been written before anybody looked out for it.
        let has_new = !layout.has_definers_of(&old);
        state.wanted |= has_new && !mutant("classify.watcher.reads-new-definers-once");
        drop(state);
        let has_same_journals = layout.keep_list_of(&old);
        if !has_same_journals || *old != layout {
            self.layout.publish(layout);
        }
    }

    fn is_stopped(&self) -> bool {
        self.state().stopped
    }

    /// Rests so long, unless it is stopped.
    fn rest(&self, time: Duration) {
        if !time.is_zero() {
            let rests = |state: &mut State| !state.stopped;
            drop(self.changed.wait_timeout_while(self.state(), time, rests));
        }
    }

    /// Waits until the next reading is due. Returns `false` if none is wanted, and the thread is to
    /// end.
    fn is_due(&self) -> bool {
        let mut state = self.state();
        while state.wanted && !state.stopped {
            let rest = state.rest();
            let since = state.ended.map_or(rest, |ended| ended.elapsed());
            let Some(left) = rest.checked_sub(since).filter(|left| !left.is_zero()) else {
                // What is written from now on, this reading may miss.
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

/// The disk in bytes. The piece that was read last is kept: what is read next often lies in it.
struct DiskBytes<'a> {
    disk: BlockingDisk,
    geometry: Geometry,
    shared: &'a Shared,
    /// Its first byte, and its bytes.
    piece: Option<(u64, Vec<u8>)>,
    /// Whether a guest's writes are the reason for this reading.
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
