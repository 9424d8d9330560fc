//! A thread that runs queues: it gives them turns, looks for work while that pays, and sleeps once
//! for all of them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TryRecvError, channel, sync_channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use flowstone_block::{Layer, NextLook, Origin, QueueContext, QueueDepth, Reactor, Waker};
use flowstone_frontend::vhost_user::VirtQueue;
use tracing::warn;

use crate::PollMode;
use crate::counters::QueueCounters;
use crate::cpus::pin_this_thread;
use crate::queue_task::{QueueTask, StopFlag};

/// Queue threads recurse nowhere and keep nothing large on the stack.
const STACK_BYTES: usize = 256 << 10;

/// Turns between two looks at the clock while looking for work.
const TURNS_PER_LOOK: u32 = 16;

/// A queue that is to run, and what it needs.
pub struct Assignment {
    /// The queue.
    pub queue: VirtQueue,
    /// The top of its disk's stack.
    pub layer: Arc<dyn Layer>,
    /// Which queue of which disk it is.
    pub origin: Origin,
    /// Where it counts.
    pub counters: Arc<QueueCounters>,
    /// How it looks for work.
    pub poll: PollMode,
}

/// A queue that runs on a poller. Dropped without [`stop`](Self::stop), it stops by itself.
pub struct RunningQueue {
    stop: Arc<StopFlag>,
    ended: Receiver<VirtQueue>,
}

impl RunningQueue {
    /// Asks it to take nothing more; does not wait.
    pub fn begin_stop(&self) {
        self.stop.raise();
    }

    /// Waits until nothing is in flight, and gives the queue back; `None` if its thread has died.
    pub fn stop(self) -> Option<VirtQueue> {
        self.begin_stop();
        self.ended.recv().ok()
    }
}

impl Drop for RunningQueue {
    fn drop(&mut self) {
        // Its thread, which may be waited for next, ends with its queues.
        self.begin_stop();
    }
}

/// A poller's thread, seen from others. Dropping it ends the thread when its queues have ended.
pub struct PollerThread {
    mailbox: Arc<Mailbox>,
    arrivals: Option<Sender<Arrival>>,
    thread: Option<JoinHandle<()>>,
}

/// How a poller hears that something has arrived for it.
struct Mailbox {
    waker: Arc<Waker>,
    full: AtomicBool,
}

impl Mailbox {
    fn ring(&self) {
        self.full.store(true, Ordering::Release);
        self.waker.wake();
    }

    fn is_full(&self) -> bool {
        self.full.load(Ordering::Acquire)
    }
}

/// A queue on its way to a poller.
struct Arrival {
    assignment: Assignment,
    stop: Arc<StopFlag>,
    started: SyncSender<io::Result<()>>,
    ended: SyncSender<VirtQueue>,
}

impl PollerThread {
    /// Starts a thread called `name`, on this CPU if one is given.
    pub fn spawn(name: String, cpu: Option<usize>) -> io::Result<Self> {
        let (arrivals, inbox) = channel();
        let (report, made) = sync_channel(1);
        let run = move || {
            if let Some(cpu) = cpu
                && let Err(error) = pin_this_thread(cpu)
            {
                warn!(cpu, %error, "cannot pin a queue to its CPU; it runs anywhere");
            }
            // Here: a reactor stays on its thread.
            match Poller::new(inbox) {
                Ok(poller) => {
                    let _ = report.send(Ok(Arc::clone(&poller.mailbox)));
                    poller.run();
                }
                Err(error) => drop(report.send(Err(error))),
            }
        };
        let thread = Builder::new().name(name).stack_size(STACK_BYTES).spawn(run)?;
        let mailbox = made.recv().map_err(|_| died())??;
        Ok(Self { mailbox, arrivals: Some(arrivals), thread: Some(thread) })
    }

    /// Runs a queue on this thread.
    pub fn assign(&self, assignment: Assignment) -> io::Result<RunningQueue> {
        let stop = Arc::new(StopFlag::new(Arc::clone(&self.mailbox.waker)));
        let (started, has_started) = sync_channel(1);
        let (ended, has_ended) = sync_channel(1);
        let arrival = Arrival { assignment, stop: Arc::clone(&stop), started, ended };
        let sent = self.arrivals.as_ref().is_some_and(|it| it.send(arrival).is_ok());
        if !sent {
            return Err(died());
        }
        self.mailbox.ring();
        has_started.recv().map_err(|_| died())??;
        Ok(RunningQueue { stop, ended: has_ended })
    }
}

impl Drop for PollerThread {
    /// Waits for the thread. One that has panicked has said so.
    fn drop(&mut self) {
        self.arrivals = None;
        self.mailbox.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn died() -> io::Error {
    io::Error::other("a queue's thread died")
}

/// What runs on the thread.
struct Poller {
    // Before the reactor's last handle: they have watches and rings in it.
    tasks: Vec<Task>,
    reactor: Reactor,
    mailbox: Arc<Mailbox>,
    inbox: Receiver<Arrival>,
    /// Whether nothing more can arrive.
    closed: bool,
}

struct Task {
    queue: QueueTask,
    ended: SyncSender<VirtQueue>,
}

impl Poller {
    fn new(inbox: Receiver<Arrival>) -> io::Result<Self> {
        let reactor = Reactor::new()?;
        let mailbox = Arc::new(Mailbox { waker: reactor.waker(), full: AtomicBool::new(false) });
        Ok(Self { tasks: Vec::new(), reactor, mailbox, inbox, closed: false })
    }

    fn run(mut self) {
        loop {
            if self.mailbox.is_full() {
                self.take_arrivals();
            }
            if self.closed && self.tasks.is_empty() {
                return;
            }
            if self.turn().is_none() {
                self.idle();
            }
        }
    }

    fn take_arrivals(&mut self) {
        // Before the inbox is read: what comes later raises it again.
        self.mailbox.full.store(false, Ordering::Release);
        loop {
            match self.inbox.try_recv() {
                Ok(arrival) => self.begin(arrival),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    self.closed = true;
                    return;
                }
            }
        }
    }

    fn begin(&mut self, arrival: Arrival) {
        let Arrival { assignment, stop, started, ended } = arrival;
        let Assignment { queue, layer, origin, counters, poll } = assignment;
        let depth = QueueDepth(queue.size());
        let context = QueueContext { depth, origin, reactor: self.reactor.clone() };
        let made = layer.channel(&context).map(|channel| {
            let queue = QueueTask::new(queue, channel, &context, stop, counters, poll);
            self.tasks.push(Task { queue, ended });
        });
        let _ = started.send(made);
    }

    /// A turn for every queue. Returns when one found work, or ended.
    fn turn(&mut self) -> Option<Instant> {
        let mut found = None;
        let mut over = false;
        for Task { queue, .. } in &mut self.tasks {
            found = queue.turn().or(found);
            over |= queue.is_over();
        }
        if over { self.end_tasks().or(found) } else { found }
    }

    fn end_tasks(&mut self) -> Option<Instant> {
        for Task { queue, ended } in self.tasks.extract_if(.., |task| task.queue.is_over()) {
            let _ = ended.send(queue.into_queue());
        }
        Some(Instant::now())
    }

    /// Looks for work for a while, then sleeps until there is some. A wake-up for nothing is part
    /// of the gap between work, and looking again would not pay.
    fn idle(&mut self) {
        let start = Instant::now();
        let budgets = self.tasks.iter_mut().map(|task| task.queue.begin_idle(start));
        let budget = budgets.max().unwrap_or_default();
        let mut found = self.look(start, budget);
        while found.is_none() && !self.mailbox.is_full() {
            self.sleep();
            found = self.turn();
        }
    }

    /// Returns when it found work, if it did. What was found is done by then, and is not counted
    /// as looking.
    fn look(&mut self, start: Instant, budget: Duration) -> Option<Instant> {
        if budget.is_zero() {
            return None;
        }
        loop {
            let found = self.turns();
            let now = found.unwrap_or_else(Instant::now);
            let time = now - start;
            if found.is_some() || self.mailbox.is_full() || time > budget {
                self.tasks.iter().for_each(|task| task.queue.count_looking(time));
                return found;
            }
            // The threads that do the disk's work may need this core: the kernel's threads that
            // sync and complete, a maintenance worker, other queues.
            std::thread::yield_now();
        }
    }

    fn turns(&mut self) -> Option<Instant> {
        (0..TURNS_PER_LOOK).find_map(|_| {
            std::hint::spin_loop();
            self.turn()
        })
    }

    /// Sleeps until there may be something to do for any of the queues.
    fn sleep(&mut self) {
        let from = Instant::now();
        let mut has_work = false;
        for Task { queue, .. } in &mut self.tasks {
            // All of them, whatever one finds: each is unparked below.
            has_work |= queue.park();
        }
        if !has_work {
            let Self { tasks, reactor, mailbox, .. } = self;
            reactor.sleep(|| {
                let looks = tasks.iter_mut().map(|task| task.queue.next_look());
                // Every one of them: a look also starts what is to be started.
                looks.fold(NextLook::now_if(mailbox.is_full()), NextLook::min)
            });
            let time = from.elapsed();
            self.tasks.iter().for_each(|task| task.queue.count_sleep(time));
        }
        self.tasks.iter_mut().for_each(|task| task.queue.unpark());
    }
}

#[cfg(test)]
mod tests;
