//! A host device, with the scheduler shared by the threads of its disks.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::gate::DeviceGate;
use super::scheduler::Scheduler;
use crate::fair_queue::Rank;
use crate::nanoseconds::Nanoseconds;
use crate::{DiskKey, QueueKey};

/// A host device.
pub struct Device {
    /// The scheduler's clock.
    pub time: Nanoseconds,
    state: Mutex<State>,
    /// Whether two disks are active. Read for each request.
    contended: AtomicBool,
}

/// State under the lock, which is taken for each batch while disks contend, otherwise every few
/// milliseconds. It is never held across I/O.
#[derive(Default)]
pub struct State {
    pub scheduler: Scheduler,
    gates: BTreeMap<QueueKey, Arc<DeviceGate>>,
}

impl State {
    pub fn add_queue(&mut self, disk: DiskKey, rank: Rank, gate: Arc<DeviceGate>) -> QueueKey {
        let queue = self.scheduler.add_queue(disk, rank);
        self.gates.insert(queue, gate);
        queue
    }

    pub fn remove_queue(&mut self, queue: QueueKey) {
        self.scheduler.remove_queue(queue);
        self.gates.remove(&queue);
    }

    /// Makes grants. Returns the gates to wake after the lock is released: those of other threads
    /// than that of the `own` queues.
    pub fn advance(&mut self, now: u64, own: [QueueKey; 2]) -> Vec<Arc<DeviceGate>> {
        let Self { scheduler, gates } = self;
        let mut others = Vec::new();
        scheduler.advance(now, |queue| {
            if !own.contains(&queue)
                && let Some(gate) = gates.get(&queue)
                && !gate.is_granted()
            {
                gate.grant();
                others.push(Arc::clone(gate));
            }
        });
        others
    }
}

impl Device {
    pub fn new(time: Nanoseconds) -> Self {
        let (state, contended) = Default::default();
        Self { time, state, contended }
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn is_contended(&self) -> bool {
        self.contended.load(Ordering::Relaxed)
    }

    pub fn set_contended(&self, contended: bool) {
        if self.is_contended() != contended {
            self.contended.store(contended, Ordering::Relaxed);
        }
    }
}
