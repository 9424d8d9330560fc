//! State shared by the queues of a log image and its maintenance worker.

mod accounting;
pub mod append;
mod hold;
pub mod rate;
pub mod reserve;

use std::sync::{Arc, OnceLock, PoisonError};

use flowstone_block::sync::Mutex;
use flowstone_block::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use flowstone_block::{Clock, Errno, mutated};
use flowstone_image::runtime::group_sync::GroupSync;
use flowstone_image::runtime::inbox::Inbox;
use flowstone_image::runtime::wakers::{QueueWaker, Wakers};
use flowstone_log_format::{Codec, Sequence, Shape};
use flowstone_log_store::SegmentStore;
use tracing::{error, info, warn};

pub use self::accounting::{Accounting, LogCosts};
use self::append::{AppendState, Draft, Effects, Full, Health, Place, PlaceError};
use self::hold::Hold;
use crate::command::Command;
use crate::copy_memory::CopyMemory;
use crate::volume::Volume;
use crate::volume::map::BlockMap;

/// The log of an open image: appends records, commits them to the map of a [`Volume`], and counts
/// as live what that map names. The volume is handed in.
pub struct Log {
    /// The image's path, for messages.
    pub name: String,
    pub store: SegmentStore,
    /// Clock of the store.
    pub clock: Clock,
    pub codec: Codec,
    pub shape: Shape,
    pub sync: GroupSync,
    pub inbox: Inbox<Command>,
    /// Memory in which the cleaner gathers copies, once the image's owner has set it.
    pub copy_memory: OnceLock<CopyMemory>,
    /// See [`AGE_POWER`](crate::policy::AGE_POWER), the default.
    pub age_power: OnceLock<f64>,
    /// Number of lifetimes of copies; by default all that there are.
    pub copy_lifetimes: OnceLock<u8>,
    /// Whether dead segments are deallocated at once.
    pub telling: AtomicBool,
    /// Bytes of copies that are written in a row now; 0 while none are made.
    pub run_bytes: AtomicU64,
    state: Mutex<AppendState>,
    /// Copies of fields of `state`, readable without the lock.
    committed: AtomicU64,
    health: AtomicU8,
    /// Counts how often the maintenance worker has freed space or started new heads.
    room_made: AtomicU64,
    pub wakers: Wakers,
}

impl Log {
    pub fn new(name: String, store: SegmentStore, codec: Codec, mut state: AppendState) -> Self {
        let clock = store.clock();
        state.set_time(clock.clone());
        Self {
            name,
            store,
            codec,
            shape: state.shape(),
            sync: GroupSync::default(),
            inbox: Inbox::new(clock.clone()),
            clock,
            copy_memory: OnceLock::new(),
            age_power: OnceLock::new(),
            copy_lifetimes: OnceLock::new(),
            telling: AtomicBool::new(false),
            run_bytes: AtomicU64::new(0),
            committed: AtomicU64::new(state.committed().get()),
            health: AtomicU8::new(state.health() as u8),
            room_made: AtomicU64::new(0),
            state: Mutex::new(state),
            wakers: Wakers::default(),
        }
    }

    /// Takes the lock. Held only briefly, never across I/O.
    pub fn append_state(&self) -> Hold<'_> {
        Hold::begin(self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sets the limit of segments, which passes a few free ones per hold of the lock.
    pub fn set_limit(&self, limit: u32) {
        while !self.append_state().segments_mut().move_limit(limit) {}
    }

    /// Raises the limit of segments until `wanted` are ready or obtainable.
    pub fn raise_limit_for(&self, wanted: u32, most: u32) {
        while !self.append_state().segments_mut().raise_limit_for(wanted, most) {}
    }

    /// Returns whether the record with this sequence number has committed.
    pub fn has_committed(&self, sequence: Sequence) -> bool {
        sequence < self.commits()
    }

    /// Returns the first uncommitted sequence number: a change means that a record has committed.
    pub fn commits(&self) -> Sequence {
        Sequence::new(self.committed.load(Ordering::Acquire))
    }

    /// Returns a counter: a change means that requests which were refused a place may try again.
    pub fn room_made(&self) -> u64 {
        self.room_made.load(Ordering::Acquire)
    }

    /// Makes all requests that wait for a place try again.
    pub fn wake_waiting(&self) {
        self.room_made.fetch_add(1, Ordering::Release);
        self.wakers.wake_all();
    }

    /// Reports that there is room again, and makes the requests that wait for it try again.
    pub fn announce_room(&self) {
        if self.append_state().note_room() {
            info!("{}: there is room for writes again", self.name);
        }
        self.wake_waiting();
    }

    /// Fails the requests that wait for room, when waiting is in vain.
    pub fn give_up_waiting(&self, errno: Errno) {
        let full = Full { errno, at: self.clock.now() };
        let warn = |what: &str| warn!("{}: no room for {what}: {errno}", self.name);
        if self.append_state().refuse_waiting(full, warn) {
            self.wake_waiting();
        }
    }

    /// Ends copying for now: no write waits for the space it frees.
    pub fn end_copying(&self) {
        let held = self.append_state().rate_mut().end();
        let held = mutated("log.rate.leaves-writes-behind", held, false);
        if held {
            self.wake_waiting();
        }
    }

    /// Returns whether no record can commit until the maintenance worker has started new heads.
    pub fn is_broken(&self) -> bool {
        self.health.load(Ordering::Acquire) != Health::Running as u8
    }

    /// Returns whether no record can ever commit again: requests that wait for one must end.
    pub fn has_stopped(&self) -> bool {
        self.health.load(Ordering::Acquire) == Health::Stopped as u8
    }

    /// Returns whether unmapped blocks read as zeroes after a crash, too. Until the maintenance
    /// worker has started new heads, replay may find a record that failed, or one behind it: its
    /// guests got an error, so the outcome is undefined, but a later trim or zeroing of the block
    /// must hold.
    pub fn unmapped_is_zero(&self) -> bool {
        mutated("log.trim.ignores-failed-records", !self.is_broken(), true)
    }

    /// Gives a record its place in the file and in the order.
    pub fn place(
        &self,
        draft: &Draft<'_>,
        volume: &Volume,
        owner: &Arc<QueueWaker>,
    ) -> Result<Place, PlaceError> {
        let mut effects = Effects::default();
        let placed = {
            let mut state = self.append_state();
            // This reads the disk's size under the lock: a resize that shrinks the disk checks for
            // records in flight beyond the new end.
            state.place(draft, volume, owner, &mut effects)
        };
        self.apply_effects(effects, owner);
        placed
    }

    /// Marks a record of `owner` as written or failed. Records that commit are applied to the map.
    pub fn written(
        &self,
        sequence: Sequence,
        succeeded: bool,
        map: &BlockMap,
        owner: &Arc<QueueWaker>,
    ) {
        let mut effects = Effects::default();
        {
            let mut state = self.append_state();
            state.written(sequence, succeeded, map, &mut effects);
            self.show(&state);
        }
        if !succeeded {
            error!("{}: a write to the image failed; starting a new place in the log", self.name);
        }
        self.apply_effects(effects, owner);
    }

    /// Gives up a record that cannot commit any more. Returns `true` if it has committed after all.
    pub fn give_up(&self, sequence: Sequence) -> bool {
        let mut state = self.append_state();
        if sequence < state.committed() {
            return true;
        }
        state.give_up(sequence);
        drop(state);
        self.inbox.schedule_pass();
        false
    }

    /// Stops all writing: without the maintenance worker there are no checkpoints and no room.
    pub fn retire(&self) {
        self.change_health(&mut self.append_state(), Health::Stopped);
        self.inbox.close();
        self.wake_waiting();
    }

    /// Sets whether records can be placed, for readers without the lock, too.
    pub fn change_health(&self, state: &mut AppendState, health: Health) {
        state.set_health(health);
        self.show(state);
    }

    /// Publishes copies of locked fields, for readers without the lock.
    fn show(&self, state: &AppendState) {
        self.committed.store(state.committed().get(), Ordering::Release);
        self.health.store(state.health() as u8, Ordering::Release);
    }

    fn apply_effects(&self, effects: Effects, except: &Arc<QueueWaker>) {
        if effects.wake_maintenance {
            self.inbox.schedule_pass();
        }
        let wakes = mutated("log.commit.wakes-nobody", true, false);
        if !wakes {
            return;
        }
        effects
            .wake
            .iter()
            .filter(|waker| !Arc::ptr_eq(waker, except))
            .for_each(|waker| waker.wake());
    }
}
