//! A poller's thread, as other threads see it.

use std::io;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use flowstone_block::sync::mpsc::{Receiver, sync_channel};
use flowstone_block::sync::thread::{Builder, JoinHandle};
use flowstone_block::{LogBudget, mutated};
use tracing::warn;

use super::Poller;
use super::activity::Activity;
use super::handover::{Arrival, Cause, Inbox, Orders, TaskHandle};
use crate::CpuList;
use crate::cpu_budget::ProcessBudget;
use crate::cpus::{pin_this_thread, set_niceness_of_this_thread};
use crate::task::{NotRun, Part, QueueSpec};

/// Pollers do not recurse and keep nothing large on the stack.
const STACK_BYTES: usize = 256 << 10;

/// Shared log budget for warnings at the start of threads.
static LOG: LazyLock<Mutex<LogBudget>> = LazyLock::new(Mutex::default);

/// Settings of a poller's thread.
#[derive(Clone, Default)]
pub struct PollerOptions {
    /// Index of the poller in the daemon.
    pub index: usize,
    /// CPUs that it is pinned to; empty for none.
    pub cpus: CpuList,
    /// Niceness of the thread (setpriority(2)), if it is not that of the process.
    pub nice: Option<i8>,
    /// CPU budget of the process, if limited.
    pub budget: Option<Arc<ProcessBudget>>,
    /// Whether queues share the thread: then it polls less, to save CPU time.
    pub is_shared: bool,
    /// Told when the poller wakes up.
    pub activity: Arc<Activity>,
}

/// Owner of a poller's thread. Dropping it ends the thread once its queues have ended.
pub struct PollerThread {
    inbox: Arc<Inbox>,
    thread: Option<JoinHandle<()>>,
}

impl PollerThread {
    /// Starts a thread called `name`.
    pub fn spawn(name: String, options: PollerOptions) -> io::Result<Self> {
        let (report, made) = sync_channel(1);
        let run = move || {
            // First: memory that the thread allocates lies on its node.
            if let Err(error) = pin_this_thread(&options.cpus) {
                warn_unpinned(&options.cpus, &error);
            }
            let nice = mutated("runner.poller.is-as-nice-as-the-process", options.nice, None);
            if let Some(nice) = nice {
                // `Pollers::new` has tried it.
                let _ = set_niceness_of_this_thread(nice);
            }
            // Here, since a reactor stays on its thread.
            match Poller::new(options) {
                Ok(poller) => {
                    let _ = report.send(Ok(Arc::clone(&poller.inbox)));
                    poller.run();
                }
                Err(error) => drop(report.send(Err(error))),
            }
        };
        let thread = Builder::new().name(name).stack_size(STACK_BYTES).spawn(run)?;
        let inbox = made.recv().map_err(|_| died())??;
        Ok(Self { inbox, thread: Some(thread) })
    }

    /// Returns its inbox, where queues are handed over.
    pub fn inbox(&self) -> &Arc<Inbox> {
        &self.inbox
    }

    /// Runs a part on this thread; waits until it does.
    pub fn assign(&self, part: Box<dyn Part>, spec: QueueSpec) -> Result<TaskHandle, NotRun> {
        self.hand_over(part, spec)?.wait()
    }

    /// Hands a part over to this thread; does not wait for it.
    pub fn hand_over(&self, part: Box<dyn Part>, spec: QueueSpec) -> Result<StartingTask, NotRun> {
        let orders = Arc::new(Orders::new(Arc::clone(&self.inbox)));
        let (started, has_started) = sync_channel(1);
        let (ended, has_ended) = sync_channel(1);
        let cause = Cause::Start(started);
        let arrival = Arrival { part, spec, orders: Arc::clone(&orders), ended, cause };
        let posted = self.inbox.post(arrival);
        posted.map_err(|back| NotRun { error: died(), part: Some(back.part) })?;
        Ok(StartingTask { running: TaskHandle { orders, ended: has_ended }, has_started })
    }
}

/// The handle of a part that has been handed over to a thread and may not run yet.
pub struct StartingTask {
    running: TaskHandle,
    has_started: Receiver<Result<(), NotRun>>,
}

impl StartingTask {
    /// Returns its orders, for moving it.
    pub fn orders(&self) -> &Arc<Orders> {
        self.running.orders()
    }

    /// Waits until it runs or has failed, for as long as its thread and its disk take. The caller
    /// must hold no lock that others need.
    pub fn wait(self) -> Result<TaskHandle, NotRun> {
        let died = |_| Err(NotRun { error: died(), part: None });
        self.has_started.recv().unwrap_or_else(died)?;
        Ok(self.running)
    }
}

impl Drop for PollerThread {
    /// Joins the thread, unless it has died: then it may wait for the hosts of its disks.
    fn drop(&mut self) {
        let has_died = self.inbox.has_ended();
        self.inbox.close();
        if let Some(thread) = self.thread.take().filter(|_| !has_died) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
impl PollerThread {
    /// Ends its inbox, as the death of the thread does.
    pub fn die_for_test(&self) {
        drop(super::EndsInbox(Arc::clone(&self.inbox)));
    }
}

/// Warns that a thread is not pinned, if the budget allows it: a guest can cause threads to start
/// as often as it likes.
fn warn_unpinned(cpus: &CpuList, error: &io::Error) {
    if let Some(unsaid) = LOG.lock().unwrap_or_else(PoisonError::into_inner).spend() {
        warn!(%cpus, %error, unsaid, "cannot pin a poller to its CPUs; it runs anywhere");
    }
}

fn died() -> io::Error {
    io::Error::other("a poller's thread died")
}

#[cfg(test)]
mod tests {
    use super::*;
    use flowstone_testkit::lines_logged;

    /// Regression: 27,489 lines in five seconds.
    #[test]
    fn threads_that_cannot_be_pinned_write_a_burst_of_lines() {
        let none = CpuList::from(rustix::thread::CpuSet::MAX_CPU - 1);
        let warn = || warn_unpinned(&none, &io::Error::other("no such CPU"));
        let lines = lines_logged(|| (0..1000).for_each(|_| warn()));
        assert!((1..100).contains(&lines), "{lines}");
    }
}
