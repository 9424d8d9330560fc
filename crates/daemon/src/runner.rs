//! A thread for each running queue of a disk.

use std::io;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

use flowstone_block::{Layer, QueueDepth};
use flowstone_frontend::vhost_user::{QueueRunner, VirtQueue};
use tracing::{error, warn};

use crate::PollMode;
use crate::counters::QueueCounters;
use crate::cpus::{CpuList, pin_this_thread};
use crate::worker::{StopFlag, Worker};

/// Queue threads recurse nowhere and keep nothing large on the stack.
const STACK_BYTES: usize = 256 << 10;

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

/// Runs the queues of one disk.
pub struct ThreadRunner {
    name: String,
    layer: Arc<dyn Layer>,
    poll: PollMode,
    cpus: CpuList,
    table: Arc<QueueTable>,
    running: Vec<Option<Running>>,
}

struct Running {
    stop: Arc<StopFlag>,
    thread: JoinHandle<u16>,
}

impl ThreadRunner {
    /// For the queues of the disk called `name`, whose stack begins at `layer`.
    pub fn new(
        name: String,
        layer: Arc<dyn Layer>,
        poll: PollMode,
        cpus: CpuList,
        table: Arc<QueueTable>,
    ) -> Self {
        Self { name, layer, poll, cpus, table, running: Vec::new() }
    }
}

impl QueueRunner for ThreadRunner {
    fn start(&mut self, index: usize, queue: VirtQueue) -> io::Result<()> {
        let stop = Arc::new(StopFlag::new()?);
        let counters = self.table.of(index);
        let layer = Arc::clone(&self.layer);
        let poll = self.poll;
        let cpu = self.cpus.for_queue(index);
        let (report, started) = sync_channel(1);
        let thread_stop = Arc::clone(&stop);
        let run = move || {
            if let Some(cpu) = cpu
                && let Err(error) = pin_this_thread(cpu)
            {
                warn!(cpu, %error, "cannot pin a queue to its CPU; it runs anywhere");
            }
            let next_avail = queue.next_avail();
            // Channels stay on the thread that makes them.
            let channel = match layer.channel(QueueDepth(queue.size())) {
                Ok(channel) => channel,
                Err(error) => {
                    let _ = report.send(Err(error));
                    return next_avail;
                }
            };
            let _ = report.send(Ok(()));
            Worker::new(queue, channel, thread_stop, counters, poll).run()
        };
        let thread = Builder::new()
            .name(format!("{}/q{index}", self.name))
            .stack_size(STACK_BYTES)
            .spawn(run)?;
        started.recv().map_err(|_| io::Error::other("a queue's thread died at its start"))??;
        if self.running.len() <= index {
            self.running.resize_with(index + 1, || None);
        }
        self.running[index] = Some(Running { stop, thread });
        Ok(())
    }

    fn begin_stop(&mut self, index: usize) {
        if let Some(Some(running)) = self.running.get(index) {
            running.stop.raise();
        }
    }

    fn stop(&mut self, index: usize) -> Option<u16> {
        let running = self.running.get_mut(index)?.take()?;
        running.stop.raise();
        match running.thread.join() {
            Ok(next_avail) => Some(next_avail),
            Err(_) => {
                error!(disk = self.name, queue = index, "a queue's thread has panicked");
                None
            }
        }
    }
}
