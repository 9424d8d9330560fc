//! State shared by the queues of an image, its slow-path pool and its maintenance worker.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flowstone_block::{Clock, Errno, Outcome, SectorCount, mutated};
use flowstone_fileio::FileIo;
use flowstone_image::runtime::discards::DiscardCounters;
use flowstone_image::runtime::group_sync::GroupSync;
use flowstone_image::runtime::pace::Activity;
use flowstone_image::runtime::wakers::Wakers;
use flowstone_image::{DamageList, DiscardMode, Image};
use tracing::error;

use super::commits::{Command, Commits};
use super::epochs::Epochs;
use super::meta::Meta;
use super::shape::Shape;

/// Interval of polling for the end of a claim, when working by hand.
const CLAIM_LOOK: Duration = Duration::from_micros(10);

/// The shared part of an open qcow2 image.
pub struct Core {
    /// The image's path, for messages.
    pub name: String,
    pub file: Box<dyn FileIo>,
    /// Clock of the file.
    pub clock: Clock,
    pub shape: Shape,
    pub readonly: bool,
    pub discard: DiscardMode,
    pub backing: Option<Box<dyn Image>>,
    pub commits: Commits,
    /// Group sync of flushes that need no commit.
    pub sync: GroupSync,
    pub epochs: Epochs,
    /// Activity counters of the guests.
    pub activity: Arc<Activity>,
    pub discards: Arc<DiscardCounters>,
    pub damages: DamageList,
    /// In sectors; a live resize changes it.
    capacity: AtomicU64,
    meta: Mutex<Meta>,
    /// Signalled when a claim ends, when there is room, and when there will be none.
    changed: Condvar,
    /// Whether the whole image works on one thread, where waiting for another thread would never
    /// end.
    is_by_hand: AtomicBool,
    /// By hand: a request has asked for room, and has no answer yet.
    asks_by_hand: AtomicBool,
    /// Number of threads that wait for `changed`.
    #[cfg(test)]
    pub waiting: std::sync::atomic::AtomicUsize,
    pub wakers: Wakers,
}

impl Core {
    pub fn new(
        name: String,
        file: Box<dyn FileIo>,
        backing: Option<Box<dyn Image>>,
        readonly: bool,
        discard: DiscardMode,
        capacity: SectorCount,
        meta: Meta,
    ) -> Self {
        let clock = file.clock();
        Self {
            name,
            file,
            shape: meta.map.shape,
            readonly,
            discard,
            backing,
            commits: Commits::new(clock.clone()),
            clock,
            sync: GroupSync::default(),
            epochs: Epochs::default(),
            activity: Arc::default(),
            discards: Arc::default(),
            damages: DamageList::default(),
            capacity: AtomicU64::new(capacity.get()),
            meta: Mutex::new(meta),
            changed: Condvar::new(),
            is_by_hand: AtomicBool::new(false),
            asks_by_hand: AtomicBool::new(false),
            #[cfg(test)]
            waiting: Default::default(),
            wakers: Wakers::default(),
        }
    }

    pub fn capacity(&self) -> SectorCount {
        SectorCount::new(self.capacity.load(Ordering::Relaxed))
    }

    pub fn set_capacity(&self, capacity: SectorCount) {
        self.capacity.store(capacity.get(), Ordering::Relaxed);
    }

    /// Takes the lock. Held only briefly, never across I/O.
    pub fn meta(&self) -> MutexGuard<'_, Meta> {
        self.meta.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes all work run on one thread: nothing waits for another thread from now on.
    pub fn work_by_hand(&self) {
        self.is_by_hand.store(true, Ordering::Relaxed);
    }

    pub fn is_by_hand(&self) -> bool {
        self.is_by_hand.load(Ordering::Relaxed)
    }

    /// Returns whether a request waits for an answer of the maintenance worker.
    pub fn asks_by_hand(&self) -> bool {
        self.asks_by_hand.load(Ordering::Relaxed)
    }

    /// Lets the request that asked go on.
    pub fn answered_by_hand(&self) {
        self.asks_by_hand.store(false, Ordering::Relaxed);
    }

    /// Releases the lock until [`tell_changed`](Self::tell_changed). By hand, claims are held by
    /// queues, which go on while the clock sleeps.
    pub fn wait_for_change<'meta>(
        &'meta self,
        meta: MutexGuard<'meta, Meta>,
    ) -> MutexGuard<'meta, Meta> {
        if self.is_by_hand() {
            drop(meta);
            self.clock.sleep(CLAIM_LOOK);
            return self.meta();
        }
        #[cfg(test)]
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let meta = self.changed.wait(meta).unwrap_or_else(PoisonError::into_inner);
        #[cfg(test)]
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        meta
    }

    /// Returns the number of clusters by which the file grows ahead of need: the host allocates
    /// only clusters that are written, so this costs nothing.
    pub fn room_step(&self) -> u64 {
        const STEP_BYTES_MAX: u64 = 4 << 30;
        let most = STEP_BYTES_MAX / self.shape.cluster_bytes();
        (self.shape.clusters(self.capacity().bytes()) / 4).clamp(64, most)
    }

    /// Returns the number of unused clusters below which more are requested.
    pub fn room_low(&self) -> u64 {
        self.room_step() / 2
    }

    /// Waits until the maintenance worker has tried to make room.
    ///
    /// # Errors
    /// EAGAIN when working by hand, where it cannot be waited for: the worker is called, and the
    /// request must be retried after it.
    pub fn ask_for_room(&self) -> Outcome {
        let reply = self.commits.inbox.ask(Command::MakeRoom);
        if self.is_by_hand() {
            self.asks_by_hand.store(true, Ordering::Relaxed);
            return Err(Errno::AGAIN);
        }
        // The caller checks the map for room.
        let _ = reply.wait();
        Ok(())
    }

    /// Signals that a claim has ended, or that the amount of room has changed.
    pub fn tell_changed(&self) {
        self.changed.notify_all();
    }

    /// Returns whether the content of the medium is unknown, or the in-memory state half changed by
    /// a thread that has panicked: then all flushes fail, and nothing of the map is written.
    pub fn has_failed(&self) -> bool {
        let is_broken = self.meta.is_poisoned();
        let is_broken = mutated("qcow2.meta.trusts-a-half-made-change", is_broken, false);
        self.sync.has_failed() || self.commits.has_failed() || is_broken
    }

    /// Makes all later flushes fail.
    pub fn fail(&self, what: &str) {
        if !self.commits.has_failed() {
            error!("{}: {what}; flushes fail until the image is opened anew", self.name);
        }
        self.commits.fail();
    }
}
