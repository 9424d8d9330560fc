//! A thread for each running queue of a disk.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flowstone_block::{Layer, Origin};
use flowstone_frontend::vhost_user::{QueueRunner, VirtQueue};
use tracing::error;

use crate::PollMode;
use crate::counters::QueueCounters;
use crate::cpus::CpuList;
use crate::poller::{Assignment, PollerThread, RunningQueue};

/// The counters of a disk's queues, by queue number; queues that never ran have none.
#[derive(Default)]
pub struct QueueTable(Mutex<Vec<Option<Arc<QueueCounters>>>>);

impl QueueTable {
    fn lock(&self) -> MutexGuard<'_, Vec<Option<Arc<QueueCounters>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The counters of a queue, made if it runs for the first time.
    fn of(&self, index: usize) -> Arc<QueueCounters> {
        let mut table = self.lock();
        if table.len() <= index {
            table.resize(index + 1, None);
        }
        Arc::clone(table[index].get_or_insert_default())
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

/// Runs the queues of one disk, each on a thread of its own.
pub struct ThreadRunner {
    name: String,
    /// The disk's number in the daemon.
    number: u32,
    layer: Arc<dyn Layer>,
    poll: PollMode,
    cpus: CpuList,
    table: Arc<QueueTable>,
    running: Vec<Option<Running>>,
}

struct Running {
    queue: RunningQueue,
    /// Ends with its queue.
    _thread: PollerThread,
}

impl ThreadRunner {
    /// For the queues of the disk called `name`, whose stack begins at `layer`.
    pub fn new(
        name: String,
        number: u32,
        layer: Arc<dyn Layer>,
        poll: PollMode,
        cpus: CpuList,
        table: Arc<QueueTable>,
    ) -> Self {
        Self { name, number, layer, poll, cpus, table, running: Vec::new() }
    }
}

impl QueueRunner for ThreadRunner {
    fn start(&mut self, index: usize, queue: VirtQueue) -> io::Result<()> {
        let thread =
            PollerThread::spawn(format!("{}/q{index}", self.name), self.cpus.for_queue(index))?;
        let queue = thread.assign(Assignment {
            queue,
            layer: Arc::clone(&self.layer),
            origin: Origin::Queue { disk: self.number, queue: index as u16 },
            counters: self.table.of(index),
            poll: self.poll,
        })?;
        if self.running.len() <= index {
            self.running.resize_with(index + 1, || None);
        }
        self.running[index] = Some(Running { queue, _thread: thread });
        Ok(())
    }

    fn begin_stop(&mut self, index: usize) {
        if let Some(Some(running)) = self.running.get(index) {
            running.queue.begin_stop();
        }
    }

    fn stop(&mut self, index: usize) -> Option<u16> {
        let running = self.running.get_mut(index)?.take()?;
        let queue = running.queue.stop();
        if queue.is_none() {
            error!(disk = self.name, queue = index, "a queue's thread has panicked");
        }
        queue.map(|queue| queue.next_avail())
    }
}
