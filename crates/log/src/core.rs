//! State shared by the queues of a log image and its maintenance worker.

use std::sync::{Arc, OnceLock, PoisonError};

use flowstone_block::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use flowstone_block::sync::{Mutex, MutexGuard};
use flowstone_block::{Clock, Outcome, Sector, SectorCount, mutant};
use flowstone_fileio::FileIo;
use flowstone_image::runtime::discards::DiscardCounters;
use flowstone_image::runtime::group_sync::GroupSync;
use flowstone_image::runtime::inbox::Inbox;
use flowstone_image::runtime::wakers::{QueueWaker, Wakers};
use flowstone_image::{DamageList, Flaw};
use flowstone_log_format::{
    BLOCK_BYTES, BLOCK_SECTORS, Codec, MapEntry, Sequence, Shape, blocks_of_sectors,
};
use tracing::error;

use super::append::{AppendState, Draft, Effects, Health, Place, PlaceError};
use super::command::Command;
use super::copy_memory::CopyMemory;
use super::map::{BlockMap, LEAF_BLOCKS};
use super::resort::Resorting;

/// The shared part of an open log image.
pub struct Core {
    /// The image's path, for messages.
    pub name: String,
    pub file: Box<dyn FileIo>,
    /// Clock of the file.
    pub clock: Clock,
    pub codec: Codec,
    pub shape: Shape,
    pub map: BlockMap,
    pub sync: GroupSync,
    pub inbox: Inbox<Command>,
    pub discards: Arc<DiscardCounters>,
    pub damages: DamageList,
    pub resorting: Resorting,
    /// Memory in which the cleaner gathers copies, once the image's owner has set it.
    pub copy_memory: OnceLock<CopyMemory>,
    /// See [`AGE_POWER`](super::policy::AGE_POWER), the default.
    pub age_power: OnceLock<f64>,
    /// Whether dead segments are deallocated at once.
    pub telling: AtomicBool,
    /// Bytes of copies that are written in a row now; 0 while none are made.
    pub run_bytes: AtomicU64,
    /// In sectors; a live resize changes it.
    capacity: AtomicU64,
    state: Mutex<AppendState>,
    /// Copies of fields of `state`, readable without the lock.
    committed: AtomicU64,
    health: AtomicU8,
    /// Counts how often the maintenance worker has freed space or started new heads.
    room_made: AtomicU64,
    pub wakers: Wakers,
}

impl Core {
    pub fn new(
        name: String,
        file: Box<dyn FileIo>,
        codec: Codec,
        capacity: SectorCount,
        map: BlockMap,
        mut state: AppendState,
    ) -> Self {
        state.disk_leaves = leaves_of(capacity);
        state.time = file.clock();
        Self {
            name,
            clock: file.clock(),
            file,
            codec,
            shape: state.shape,
            map,
            sync: GroupSync::default(),
            inbox: Inbox::new(state.time.clone()),
            discards: Arc::default(),
            damages: DamageList::default(),
            resorting: Resorting::default(),
            copy_memory: OnceLock::new(),
            age_power: OnceLock::new(),
            telling: AtomicBool::new(false),
            run_bytes: AtomicU64::new(0),
            capacity: AtomicU64::new(capacity.get()),
            committed: AtomicU64::new(state.committed().get()),
            health: AtomicU8::new(state.health as u8),
            room_made: AtomicU64::new(0),
            state: Mutex::new(state),
            wakers: Wakers::default(),
        }
    }

    pub fn capacity(&self) -> SectorCount {
        SectorCount::new(self.capacity.load(Ordering::Relaxed))
    }

    pub fn set_capacity(&self, capacity: SectorCount) {
        self.capacity.store(capacity.get(), Ordering::Relaxed);
        self.append_state().disk_leaves = leaves_of(capacity);
    }

    /// Shrinks the disk at once, so that nothing is written beyond the new end, or grows it when
    /// `work` has made the new size durable, so that no record concerns blocks that a crash would
    /// take away again.
    pub fn resize_while(&self, capacity: SectorCount, work: impl FnOnce() -> Outcome) -> Outcome {
        let before = self.capacity();
        let meanwhile = match mutant("log.resize.told-before-durable") {
            true => capacity,
            false => capacity.min(before),
        };
        self.set_capacity(meanwhile);
        let resized = work();
        self.set_capacity(if resized.is_ok() { capacity } else { before });
        resized
    }

    /// Returns the blocks of the disk.
    pub fn blocks(&self) -> u64 {
        blocks_of_sectors(self.capacity().get())
    }

    /// Returns the bytes of the disk that are mapped, limited to the size of the disk (its last
    /// block may be partial).
    pub fn live_bytes(&self) -> u64 {
        (self.map.mapped() * BLOCK_BYTES as u64).min(self.capacity().bytes())
    }

    /// Takes the lock. Held only briefly, never across I/O.
    pub fn append_state(&self) -> MutexGuard<'_, AppendState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
        !self.is_broken() || mutant("log.trim.ignores-failed-records")
    }

    /// Gives a record its place in the file and in the order.
    pub fn place(&self, draft: &Draft<'_>, owner: &Arc<QueueWaker>) -> Result<Place, PlaceError> {
        let mut effects = Effects::default();
        let placed = {
            let mut state = self.append_state();
            // Read under the lock: a resize that shrinks the disk checks for records in flight
            // beyond the new end.
            state.place(draft, &self.map, self.blocks(), owner, &mut effects)
        };
        self.apply_effects(effects, owner);
        placed
    }

    /// Marks a record of `owner` as written or failed.
    pub fn written(&self, sequence: Sequence, succeeded: bool, owner: &Arc<QueueWaker>) {
        let mut effects = Effects::default();
        {
            let mut state = self.append_state();
            state.written(sequence, succeeded, &self.map, &mut effects);
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
        {
            let mut state = self.append_state();
            state.health = Health::Stopped;
            self.show(&state);
        }
        self.inbox.close();
        self.wake_waiting();
    }

    /// Publishes copies of locked fields, for readers without the lock.
    pub fn show(&self, state: &AppendState) {
        self.committed.store(state.committed().get(), Ordering::Release);
        self.health.store(state.health as u8, Ordering::Release);
    }

    fn apply_effects(&self, effects: Effects, except: &Arc<QueueWaker>) {
        if effects.wake_maintenance {
            self.inbox.schedule_pass();
        }
        if mutant("log.commit.wakes-nobody") {
            return;
        }
        effects
            .wake
            .iter()
            .filter(|waker| !Arc::ptr_eq(waker, except))
            .for_each(|waker| waker.wake());
    }

    /// Records that a block of the disk is lost.
    pub fn report_damage(&self, lba: u64, map_entry: MapEntry, what: &str) {
        let flaw = Flaw::new(what).at(map_entry.address().offset());
        self.damages.add(&self.name, flaw.of(Sector::new(lba * BLOCK_SECTORS)));
    }
}

fn leaves_of(capacity: SectorCount) -> u64 {
    blocks_of_sectors(capacity.get()).div_ceil(LEAF_BLOCKS)
}
