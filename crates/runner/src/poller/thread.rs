//! A poller's thread, as others see it.

use std::io;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use flowstone_block::LogBudget;
use flowstone_block::sync::mpsc::{Receiver, sync_channel};
use flowstone_block::sync::thread::{Builder, JoinHandle};
use tracing::warn;

use super::Poller;
use super::activity::Activity;
use super::handover::{Arrival, Cause, EndsInbox, Inbox, NotRun, Orders, RunningQueue};
use crate::CpuList;
use crate::cpu_budget::ProcessBudget;
use crate::cpus::pin_this_thread;
use crate::queue_run::{Part, QueueSpec};

/// Pollers recurse nowhere and keep nothing large on the stack.
const STACK_BYTES: usize = 256 << 10;

/// For what each thread that is started may have to say.
static LOG: LazyLock<Mutex<LogBudget>> = LazyLock::new(Mutex::default);

/// What a poller's thread is told when it starts.
#[derive(Clone, Default)]
pub struct PollerOptions {
    /// Which one it is, among those of the daemon.
    pub index: usize,
    /// The CPUs that it stays on; it runs anywhere if there are none.
    pub cpus: CpuList,
    /// What the whole process may use, if that is limited.
    pub budget: Option<Arc<ProcessBudget>>,
    /// Whether queues share it: it saves CPU time, then.
    pub is_shared: bool,
    /// What hears that it has woken up.
    pub activity: Arc<Activity>,
}

/// A poller's thread, seen from others. Dropping it ends the thread when its queues have ended.
pub struct PollerThread {
    inbox: Arc<Inbox>,
    thread: Option<JoinHandle<()>>,
}

impl PollerThread {
    /// Starts a thread called `name`.
    pub fn spawn(name: String, options: PollerOptions) -> io::Result<Self> {
        let (report, made) = sync_channel(1);
        let run = move || {
            // First: what it makes lies on the node where it runs.
            if let Err(error) = pin_this_thread(&options.cpus) {
                // A guest starts threads as often as it likes.
                if let Some(unsaid) = LOG.lock().unwrap_or_else(PoisonError::into_inner).spend() {
                    let cpus = &options.cpus;
                    warn!(%cpus, %error, unsaid, "cannot pin a poller to its CPUs; it runs anywhere");
                }
            }
            // Here: a reactor stays on its thread.
            match Poller::new(options) {
                Ok(poller) => {
                    let _ends = EndsInbox(Arc::clone(&poller.inbox));
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

    /// Where queues are handed over to it.
    pub fn inbox(&self) -> &Arc<Inbox> {
        &self.inbox
    }

    /// Runs a queue on this thread; waits until it does.
    pub fn assign(&self, queue: Part, spec: QueueSpec) -> Result<RunningQueue, NotRun<Part>> {
        self.hand_over(queue, spec)?.wait()
    }

    /// Hands a queue over to this thread; does not wait for it.
    pub fn hand_over(&self, queue: Part, spec: QueueSpec) -> Result<StartingQueue, NotRun<Part>> {
        let orders = Arc::new(Orders::new(Arc::clone(&self.inbox)));
        let (started, has_started) = sync_channel(1);
        let (ended, has_ended) = sync_channel(1);
        let cause = Cause::Start(started);
        let arrival = Arrival { queue, spec, orders: Arc::clone(&orders), ended, cause };
        let posted = self.inbox.post(arrival);
        posted.map_err(|back| NotRun { error: died(), queue: Some(back.queue) })?;
        Ok(StartingQueue { running: RunningQueue { orders, ended: has_ended }, has_started })
    }
}

/// A queue on its way to a thread.
pub struct StartingQueue {
    running: RunningQueue,
    has_started: Receiver<Result<(), NotRun<Part>>>,
}

impl StartingQueue {
    /// Its orders, for who moves it.
    pub fn orders(&self) -> &Arc<Orders> {
        self.running.orders()
    }

    /// Waits until it runs, or cannot: for as long as its thread and its disk take. So no lock is
    /// held that others need.
    pub fn wait(self) -> Result<RunningQueue, NotRun<Part>> {
        let died = |_| Err(NotRun { error: died(), queue: None });
        self.has_started.recv().unwrap_or_else(died)?;
        Ok(self.running)
    }
}

impl Drop for PollerThread {
    /// Waits for the thread. One that has panicked has said so.
    fn drop(&mut self) {
        self.inbox.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn died() -> io::Error {
    io::Error::other("a poller's thread died")
}
