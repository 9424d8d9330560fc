//! A group of disks that share a limit, with the line shared by their threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use super::gate::QueueGate;
use super::line::Line;
use crate::Limit;
use crate::nanoseconds::Nanoseconds;

/// Disks that share a limit. A disk without a group is in an unnamed one without a limit.
pub struct Group {
    name: Option<String>,
    time: Nanoseconds,
    state: Mutex<State>,
    /// Number of changes to anything that a waiting queue waits for.
    changes: AtomicU64,
}

/// State under the lock, which is taken for each batch of a limited queue, and never held across
/// I/O.
#[derive(Default)]
pub struct State {
    pub line: Line,
    /// Gates of all disks of the group.
    pub gates: Vec<Weak<QueueGate>>,
}

impl Group {
    /// Makes a group with a name and a limit.
    pub fn new(name: String, limit: Limit) -> Arc<Self> {
        let group = Self::make(Some(name));
        group.change(|line, now| line.set_group_limit(limit, now));
        group
    }

    /// Makes the group of a disk that is in no group.
    pub fn unnamed() -> Arc<Self> {
        Self::make(None)
    }

    fn make(name: Option<String>) -> Arc<Self> {
        let (time, state, changes) = Default::default();
        Arc::new(Self { name, time, state, changes })
    }

    /// Returns its name, if it has one.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns the limit.
    pub fn limit(&self) -> Limit {
        self.lock().line.group_limit()
    }

    /// Sets the limit; applies to waiting requests, too.
    pub fn set_limit(&self, limit: Limit) {
        self.change(|line, now| line.set_group_limit(limit, now));
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the time on the clock of the line.
    pub(super) fn now(&self) -> u64 {
        self.time.now()
    }

    /// Converts a time on the clock of the line.
    pub(super) fn instant(&self, ns: u64) -> Instant {
        self.time.instant(ns)
    }

    /// Changes something that queues may wait for, and wakes all of them.
    pub(super) fn change(&self, change: impl FnOnce(&mut Line, u64)) {
        let now = self.now();
        let mut state = self.lock();
        let State { line, gates } = &mut *state;
        change(line, now);
        gates.retain(|gate| gate.strong_count() > 0);
        let gates: Vec<_> = gates.iter().filter_map(Weak::upgrade).collect();
        for gate in &gates {
            gate.set_limited(line.is_limited(gate.disk));
        }
        drop(state);
        self.changes.fetch_add(1, Ordering::Release);
        gates.iter().for_each(|gate| gate.wake());
    }

    /// Returns the number of changes.
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }
}
