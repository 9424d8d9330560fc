//! The queues of one disk: started and stopped by its front end, run by the daemon's pollers.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flowstone_block::{Layer, Origin};
use flowstone_frontend::vhost_user::{DeviceShared, QueueRunner, VirtQueue};
use tracing::error;

use crate::config::DiskConfig;
use crate::counters::QueueCounters;
use crate::cpu_budget::CpuBudget;
use crate::cpus::CpuList;
use crate::failures::Failures;
use crate::intake::Throttle;
use crate::poller::QueueSpec;
use crate::pollers::{OwnThreads, Pipeline, PlacedQueue, Pollers};
use crate::{PollMode, memory_charge};

/// The counters of a disk's queues, by queue number; queues that never ran have none.
#[derive(Default)]
pub struct QueueTable {
    table: Mutex<Vec<Option<Arc<QueueCounters>>>>,
    /// Why requests failed, on any queue.
    pub failures: Arc<Failures>,
}

impl QueueTable {
    /// Of the disk with this name.
    pub fn new(disk: String) -> Self {
        Self { table: Mutex::default(), failures: Arc::new(Failures::of(disk)) }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Option<Arc<QueueCounters>>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The counters of a queue, made if it runs for the first time.
    fn of(&self, index: usize) -> Arc<QueueCounters> {
        let mut table = self.lock();
        if table.len() <= index {
            table.resize(index + 1, None);
        }
        let counters = || {
            let failures = Arc::clone(&self.failures);
            Arc::new(QueueCounters { failures, ..QueueCounters::default() })
        };
        Arc::clone(table[index].get_or_insert_with(counters))
    }

    /// Every queue that has ever run, with its number.
    pub fn all(&self) -> Vec<(usize, Arc<QueueCounters>)> {
        let table = self.lock();
        let known = table.iter().enumerate();
        known
            .filter_map(|(index, counters)| Some((index, Arc::clone(counters.as_ref()?))))
            .collect()
    }
}

/// Runs the queues of one disk on the daemon's pollers.
pub struct DiskQueues {
    name: String,
    /// The disk's number in the daemon.
    number: u32,
    layer: Arc<dyn Layer>,
    poll: PollMode,
    pipeline: Pipeline,
    /// The CPUs of its threads, where each queue has one.
    cpus: CpuList,
    /// What its queues may use of the CPUs, if that is limited.
    budget: Option<Arc<CpuBudget>>,
    throttle: Throttle,
    pollers: Arc<Pollers>,
    table: Arc<QueueTable>,
    device: Arc<DeviceShared>,
    running: Vec<Option<PlacedQueue>>,
}

impl DiskQueues {
    /// For the disk of `config`, whose stack begins at `layer`.
    pub fn new(
        config: &DiskConfig,
        number: u32,
        layer: Arc<dyn Layer>,
        throttle: Throttle,
        pollers: Arc<Pollers>,
        table: Arc<QueueTable>,
        device: Arc<DeviceShared>,
    ) -> Self {
        Self {
            name: config.name(),
            number,
            layer,
            poll: config.poll,
            pipeline: config.pipeline,
            cpus: config.cpus.clone().unwrap_or_default(),
            budget: config.beside.cpu_budget.map(|share| Arc::new(CpuBudget::new(share))),
            throttle,
            pollers,
            table,
            device,
            running: Vec::new(),
        }
    }

    /// The CPUs of a queue's threads: those of a list in turn.
    fn cpus_of(&self, index: usize) -> [Option<usize>; 2] {
        match self.pipeline {
            Pipeline::Fused => [self.cpus.for_thread(index), None],
            Pipeline::Split => [0, 1].map(|half| self.cpus.for_thread(2 * index + half)),
            // The second one is needed at times only, where the next queue is not at work.
            Pipeline::Auto => [0, 1].map(|half| self.cpus.for_thread(index + half)),
        }
    }
}

impl QueueRunner for DiskQueues {
    fn start(&mut self, index: usize, queue: VirtQueue) -> io::Result<()> {
        let spec = QueueSpec {
            layer: Arc::clone(&self.layer),
            origin: Origin::Queue { disk: self.number, queue: index as u16 },
            counters: self.table.of(index),
            poll: self.poll,
            budget: self.budget.clone(),
            throttle: Some(self.throttle.clone()),
        };
        let own = OwnThreads { name: format!("{}/q{index}", self.name), cpus: self.cpus_of(index) };
        let placed = self.pollers.run(queue, spec, self.pipeline, own)?;
        if self.running.len() <= index {
            self.running.resize_with(index + 1, || None);
        }
        self.running[index] = Some(placed);
        memory_charge::guest_starts(self.number, &self.device);
        Ok(())
    }

    fn begin_stop(&mut self, index: usize) {
        if let Some(Some(running)) = self.running.get(index) {
            running.begin_stop();
        }
    }

    fn stop(&mut self, index: usize) -> Option<u16> {
        let queue = self.running.get_mut(index)?.take()?.stop();
        if queue.is_none() {
            error!(disk = self.name, queue = index, "a queue has panicked");
        }
        queue.map(|queue| queue.next_avail())
    }
}
