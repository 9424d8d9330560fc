//! The queues of one disk: started and stopped by its front end, run by the daemon's pollers.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flowstone_block::{GuestQueue, Layer, Origin, QueueRunner, Throttle};
use tracing::error;

use crate::counters::QueueCounters;
use crate::cpu_budget::{CpuBudget, CpuShare};
use crate::cpus::CpuList;
use crate::failures::Failures;
use crate::halves::{Whole, whole};
use crate::pollers::{OwnThreads, Pipeline, PlacedQueue, Pollers};
use crate::queue_run::QueueSpec;
use crate::spin::PollMode;

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

/// How the queues of a disk are to run.
pub struct DiskRun {
    /// What the disk is called.
    pub name: String,
    /// Its number in the daemon.
    pub number: u32,
    /// How its queues look for work.
    pub poll: PollMode,
    /// On how many threads each of them runs.
    pub pipeline: Pipeline,
    /// The CPUs of its threads, where each queue has one.
    pub cpus: CpuList,
    /// What its queues may use of the CPUs, if that is limited.
    pub cpu_budget: Option<CpuShare>,
}

/// Runs the queues of one disk on the daemon's pollers.
pub struct DiskQueues<T, S> {
    run: DiskRun,
    layer: Arc<dyn Layer>,
    budget: Option<Arc<CpuBudget>>,
    throttle: Arc<T>,
    pollers: Arc<Pollers>,
    table: Arc<QueueTable>,
    /// Called when a queue has started.
    has_started: S,
    running: Vec<Option<PlacedQueue>>,
}

impl<T: Throttle, S: Fn() + Send> DiskQueues<T, S> {
    /// For a disk whose stack begins at `layer`.
    pub fn new(
        run: DiskRun,
        layer: Arc<dyn Layer>,
        throttle: Arc<T>,
        pollers: Arc<Pollers>,
        table: Arc<QueueTable>,
        has_started: S,
    ) -> Self {
        let budget = run.cpu_budget.map(|share| Arc::new(CpuBudget::new(share)));
        Self { run, layer, budget, throttle, pollers, table, has_started, running: Vec::new() }
    }

    /// The CPUs of a queue's threads: those of a list in turn.
    fn cpus_of(&self, index: usize) -> [Option<usize>; 2] {
        let cpus = &self.run.cpus;
        match self.run.pipeline {
            Pipeline::Fused => [cpus.for_thread(index), None],
            Pipeline::Split => [0, 1].map(|half| cpus.for_thread(2 * index + half)),
            // The second one is needed at times only, where the next queue is not at work.
            Pipeline::Auto => [0, 1].map(|half| cpus.for_thread(index + half)),
        }
    }
}

impl<Q: GuestQueue, T: Throttle, S: Fn() + Send> QueueRunner<Q> for DiskQueues<T, S> {
    fn start(&mut self, index: usize, queue: Q) -> io::Result<()> {
        let DiskRun { name, number, poll, pipeline, .. } = &self.run;
        let spec = QueueSpec {
            layer: Arc::clone(&self.layer),
            origin: Origin::Queue { disk: *number, queue: index as u16 },
            counters: self.table.of(index),
            poll: *poll,
            budget: self.budget.clone(),
        };
        let own = OwnThreads { name: format!("{name}/q{index}"), cpus: self.cpus_of(index) };
        let queue = Whole { queue, throttle: Arc::clone(&self.throttle) };
        let placed = self.pollers.run(queue, spec, *pipeline, own)?;
        if self.running.len() <= index {
            self.running.resize_with(index + 1, || None);
        }
        self.running[index] = Some(placed);
        (self.has_started)();
        Ok(())
    }

    fn begin_stop(&mut self, index: usize) {
        if let Some(Some(running)) = self.running.get(index) {
            running.begin_stop();
        }
    }

    fn stop(&mut self, index: usize) -> Option<Q> {
        let part = self.running.get_mut(index)?.take()?.stop();
        if part.is_none() {
            error!(disk = self.run.name, queue = index, "a queue has panicked");
        }
        Some(whole::<Q, T>(part?)?.queue)
    }
}
