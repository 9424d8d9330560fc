//! A thread that runs queues: it gives them turns, polls for work while that pays, and sleeps once
//! for all of them.

mod activity;
mod counters;
mod handover;
mod pass;
mod scheduled;
mod shares;
mod thread;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use flowstone_block::{NextLook, Reactor, mutated};
use tracing::{error, warn};

pub use self::activity::Activity;
pub use self::counters::PollerCounters;
use self::handover::{Arrival, Cause, EndsInbox};
pub use self::handover::{Inbox, Orders, TaskHandle};
use self::scheduled::{Scheduled, THRIFT};
use self::shares::Shares;
pub use self::thread::{PollerOptions, PollerThread};
use crate::histogram::add;
use crate::spin::{FOR_DRIVER, FOR_DRIVER_SHARED};
use crate::task::{NotRun, TaskContext};

/// Turns between two reads of the clock while polling.
const TURNS_PER_LOOK: u32 = 16;

/// Time between two checks of the process's CPU budget.
const BUDGET_LOOK: Duration = Duration::from_millis(1);

/// The state of a poller's thread.
struct Poller {
    // First: if the thread dies, a drop of the tasks may wait for hosts, and no queue is to come.
    _ends: EndsInbox,
    // Before the reactor's last handle: tasks have watches and rings in it.
    tasks: Vec<Scheduled>,
    reactor: Reactor,
    inbox: Arc<Inbox>,
    options: PollerOptions,
    /// Time of the next check of the CPU budget.
    pay_at: Instant,
    /// Time until which the thread does not poll for work.
    thrift: Instant,
    /// Number of passes over the queues.
    pass: u32,
    /// Index of the queue that was first in the last pass.
    first: usize,
    shares: Shares,
    /// Whether the next pass includes cold queues.
    look_at_all: bool,
}

impl Poller {
    fn new(options: PollerOptions) -> io::Result<Self> {
        let reactor = Reactor::new()?;
        let inbox = Arc::new(Inbox::new(options.index, reactor.waker()));
        let now = Instant::now();
        Ok(Self {
            _ends: EndsInbox(Arc::clone(&inbox)),
            tasks: Vec::new(),
            reactor,
            inbox,
            options,
            pay_at: now,
            thrift: now,
            pass: 0,
            first: 0,
            shares: Shares::default(),
            look_at_all: true,
        })
    }

    fn run(mut self) {
        loop {
            if self.inbox.is_full() {
                self.inbox.empty().into_iter().for_each(|arrival| self.begin(arrival));
            }
            if self.tasks.is_empty() && self.inbox.end_if_closed() {
                return;
            }
            match self.turn() {
                Some(found) => self.pay(found),
                None => self.idle(),
            }
        }
    }

    fn begin(&mut self, arrival: Arrival) {
        let Arrival { part, spec, orders, ended, cause } = arrival;
        let patience = if self.options.is_shared { FOR_DRIVER_SHARED } else { FOR_DRIVER };
        let (reactor, leave) = (&self.reactor, orders.leave_flag());
        let context = TaskContext { spec: &spec, reactor, leave, patience };
        // A panic drops the queue; dropping the channels of `orders` tells the thread that waits
        // for it.
        let made = catch_unwind(AssertUnwindSafe(|| part.run(&context)));
        let Ok(made) = made else {
            return error!(queue = ?spec.origin, "a queue has panicked before its first turn");
        };
        match made {
            Ok(task) => {
                cause.succeed(&self.inbox.counters);
                self.tasks.push(Scheduled::new(task, spec, orders, ended));
                self.count_tasks();
            }
            Err(NotRun { error, part }) => match (cause, part) {
                (Cause::Start(started), part) => {
                    drop(started.send(Err(NotRun { error, part })));
                }
                (Cause::Move { from, .. }, Some(part)) => {
                    warn!(%error, "a queue cannot run on another poller; it stays where it was");
                    orders.divert(&from);
                    let cause = Cause::Return;
                    self.send(&from, Arrival { part, spec, orders, ended, cause });
                }
                (Cause::Move { .. } | Cause::Return, _) => {
                    error!(%error, "a queue cannot run any more");
                }
            },
        }
    }

    fn count_tasks(&mut self) {
        self.inbox.counters.set_queues(self.tasks.len());
        let places = self.shares.reset(self.tasks.iter().map(Scheduled::disk));
        self.tasks.iter_mut().zip(places).for_each(|(task, place)| task.share = place);
    }

    fn end(&self, task: Scheduled, drained: Instant) {
        if task.lost {
            // The kernel may use the guest's memory, and a drop would wait for that with all disks
            // of the thread.
            error!(queue = ?task.spec.origin, "a queue that has panicked cannot be ended; its memory is kept");
            std::mem::forget(task.task);
            return;
        }
        if task.dead {
            let _ = catch_unwind(AssertUnwindSafe(|| drop(task)));
            return;
        }
        let Scheduled { task, spec, orders, ended, .. } = task;
        let Ok(part) = catch_unwind(AssertUnwindSafe(|| task.finish())) else {
            return error!(queue = ?spec.origin, "a queue has panicked after its last turn");
        };
        match orders.depart() {
            None => {
                // First: the thread that learns of the stop may release its disk, and another one
                // may take it over.
                drop(spec);
                drop(ended.send(part));
            }
            Some(to) => {
                let from = Arc::clone(&self.inbox);
                let cause = Cause::Move { from, drained };
                self.send(&to, Arrival { part, spec, orders, ended, cause });
            }
        }
    }

    /// Hands a queue over to another poller. If that one has died, it runs here.
    fn send(&self, to: &Inbox, arrival: Arrival) {
        if let Err(back) = to.post(arrival) {
            warn!(queue = ?back.spec.origin, "the poller of a queue that moves has died");
            back.orders.divert(&self.inbox);
            let _ = self.inbox.post(Arrival { cause: Cause::Return, ..*back });
        }
    }

    /// Rests if the process has used its CPU budget.
    fn pay(&mut self, now: Instant) {
        if now < self.pay_at {
            return;
        }
        self.pay_at = now + BUDGET_LOOK;
        let Some(until) = self.options.budget.as_ref().and_then(|budget| budget.charge(now)) else {
            return;
        };
        while !self.inbox.is_full() && Instant::now() < until {
            self.reactor.sleep(|| NextLook::now_if(self.inbox.is_full()).min(NextLook::At(until)));
        }
        self.thrift = until + THRIFT;
        PollerCounters::add_time(&self.inbox.counters.resting_ns, now.elapsed());
    }

    /// Polls for a while, then sleeps until there is work. After a spurious wake-up it sleeps again
    /// at once: the gap between work goes on, and polling again would not pay.
    fn idle(&mut self) {
        let start = Instant::now();
        let budget = self.look_budget(start);
        let mut found = if budget.is_zero() { None } else { self.look(start, budget) };
        self.pay(found.unwrap_or(start));
        while found.is_none() && !self.inbox.is_full() {
            self.sleep();
            found = self.turn();
            if found.is_none() {
                // A spurious wake-up is charged, too.
                self.pay(Instant::now());
            }
        }
    }

    /// Returns how long to poll for work.
    fn look_budget(&mut self, now: Instant) -> Duration {
        let budgets = self.tasks.iter_mut().map(|task| task.begin_idle(now));
        // Every queue is asked, since idle periods begin here.
        let longest = budgets.max().unwrap_or_default();
        if now < self.thrift { Duration::ZERO } else { longest }
    }

    /// Polls for at most `budget`. Returns when it found work, if it did. The work is done by then,
    /// and its time does not count as polling.
    fn look(&mut self, start: Instant, mut budget: Duration) -> Option<Instant> {
        let mut counted = start;
        loop {
            let found = self.turns();
            let now = found.unwrap_or_else(Instant::now);
            if now >= self.pay_at {
                self.count_looking(now - counted, now);
                self.pay(now);
                budget = self.look_budget(now);
                counted = Instant::now().max(now);
            }
            if found.is_some() || self.inbox.is_full() || now - start > budget {
                self.count_looking(now.saturating_duration_since(counted), now);
                return found;
            }
            // The threads that do the disk's work may need this core: the kernel's threads that
            // sync and complete, a maintenance worker, other queues.
            std::thread::yield_now();
        }
    }

    fn count_looking(&mut self, time: Duration, now: Instant) {
        PollerCounters::add_time(&self.inbox.counters.looking_ns, time);
        let parts = self.tasks.iter().map(|task| task.own_part_of(time));
        let wanted = parts.filter(|part| !part.is_zero()).count().max(1) as u32;
        for task in &mut self.tasks {
            let own = task.own_part_of(time);
            let own = mutated("runner.poller.charges-the-polling-of-others", own, time);
            task.count_looking(time);
            task.charge(own / wanted, now);
        }
    }

    fn turns(&mut self) -> Option<Instant> {
        (0..TURNS_PER_LOOK).find_map(|_| {
            std::hint::spin_loop();
            self.turn()
        })
    }

    /// Sleeps until one of the queues may have work.
    fn sleep(&mut self) {
        let from = Instant::now();
        let mut has_work = false;
        for task in &mut self.tasks {
            // Park all, whatever one finds: each is unparked below.
            has_work |= task.park(from);
        }
        if !has_work {
            let Self { tasks, reactor, inbox, .. } = self;
            reactor.sleep(|| {
                let looks = tasks.iter_mut().map(Scheduled::next_look);
                // All of them: a look also starts deferred work.
                let arrived = inbox.is_full();
                let arrived = mutated("runner.poller.last-look-sees-no-arrivals", arrived, false);
                looks.fold(NextLook::now_if(arrived), NextLook::min)
            });
            let time = from.elapsed();
            add(&self.inbox.counters.sleeps, 1);
            self.options.activity.woke();
            self.tasks.iter_mut().for_each(|task| task.count_sleep(time));
        }
        self.tasks.iter_mut().for_each(Scheduled::unpark);
        self.look_at_all = true;
    }
}

#[cfg(feature = "model")]
#[cfg(test)]
mod models;
#[cfg(test)]
mod tests;
