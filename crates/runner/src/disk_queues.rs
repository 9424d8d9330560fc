//! The queues of one disk: started and stopped by its front end, run by the daemon's pollers.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flowstone_block::{GuestQueue, Layer, Origin, QueueRunner, Throttle};
use tracing::error;

use crate::counters::QueueCounters;
use crate::cpu_budget::{CpuBudget, CpuShare};
use crate::cpus::CpuList;
use crate::failures::Failures;
use crate::pollers::{Pipeline, Pollers, QueueHandle};
use crate::queue::{Whole, whole};
use crate::spin::PollMode;
use crate::task::QueueSpec;

/// The counters of a disk's queues, by queue number; queues that have never run have none.
#[derive(Default)]
pub struct QueueTable {
    table: Mutex<Vec<Option<Arc<QueueCounters>>>>,
    /// Failed requests by errno, of all queues.
    pub failures: Arc<Failures>,
}

impl QueueTable {
    /// Makes the table of the disk called `disk`.
    pub fn new(disk: String) -> Self {
        Self { table: Mutex::default(), failures: Arc::new(Failures::of(disk)) }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Option<Arc<QueueCounters>>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the counters of a queue; makes them on its first run.
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

    /// Returns the counters of every queue that has ever run, with its number.
    pub fn all(&self) -> Vec<(usize, Arc<QueueCounters>)> {
        let table = self.lock();
        let known = table.iter().enumerate();
        known
            .filter_map(|(index, counters)| Some((index, Arc::clone(counters.as_ref()?))))
            .collect()
    }
}

/// Settings for running the queues of a disk.
pub struct DiskRun {
    /// Name of the disk.
    pub name: String,
    /// Number of the disk in the daemon.
    pub number: u32,
    /// Polling mode of its queues.
    pub poll: PollMode,
    /// Number of threads per queue.
    pub pipeline: Pipeline,
    /// CPUs of its queues' threads; if there are any, these are their own.
    pub cpus: CpuList,
    /// CPU budget of its queues, if limited.
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
    running: Vec<Option<QueueHandle>>,
}

impl<T: Throttle, S: Fn() + Send> DiskQueues<T, S> {
    /// Makes the queues of a disk whose stack's top is `layer`.
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

    /// Returns the CPUs for a queue's two threads, taken from the disk's list in turn.
    fn cpus_of(&self, index: usize) -> [Option<usize>; 2] {
        let cpus = &self.run.cpus;
        match self.run.pipeline {
            Pipeline::Fused => [cpus.for_thread(index), None],
            Pipeline::Split => [0, 1].map(|half| cpus.for_thread(2 * index + half)),
            // The second thread is needed at times only; it shares the next queue's CPU.
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
            name: format!("{name}/q{index}"),
            cpus: self.cpus_of(index),
            home: None,
        };
        let queue = Whole { queue, throttle: Arc::clone(&self.throttle) };
        let handle = self.pollers.run(queue, spec, *pipeline)?;
        if self.running.len() <= index {
            self.running.resize_with(index + 1, || None);
        }
        self.running[index] = Some(handle);
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
