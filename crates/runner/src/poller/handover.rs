//! How a queue comes to a poller's thread, and leaves it: for another poller, or to stop.
//!
//! Both departures begin in the same way: the queue takes nothing more until nothing is in flight.
//! Only then does its poller ask what is next, so an order to stop that comes later still holds,
//! wherever the queue is.

use std::io;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use flowstone_block::sync::atomic::{AtomicBool, Ordering};
use flowstone_block::sync::mpsc::{Receiver, SyncSender};
use flowstone_block::sync::{Mutex, MutexGuard};
use flowstone_block::{Waker, mutant};

use super::counters::PollerCounters;
use crate::queue_run::{Part, QueueSpec};

/// A queue on its way to a poller.
pub(super) struct Arrival {
    pub queue: Part,
    pub spec: QueueSpec,
    pub orders: Arc<Orders>,
    pub ended: SyncSender<Part>,
    pub cause: Cause,
}

/// A queue that could not be started.
pub struct NotRun<T> {
    /// Why.
    pub error: io::Error,
    /// The queue, unless the thread that was to run it has died with it.
    pub queue: Option<T>,
}

#[cfg(test)]
impl<T> std::fmt::Debug for NotRun<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.error.fmt(f)
    }
}

/// Why a queue comes.
pub(super) enum Cause {
    /// It is to begin to run; the thread that starts it waits to hear whether it does, and has it
    /// back if not.
    Start(SyncSender<Result<(), NotRun<Part>>>),
    /// It has run on another poller until this moment.
    Move { from: Arc<Inbox>, drained: Instant },
    /// It could not run where it was moved to, and comes back.
    Return,
}

impl Cause {
    /// The queue runs.
    pub fn succeed(self, counters: &PollerCounters) {
        match self {
            Self::Start(started) => drop(started.send(Ok(()))),
            Self::Move { drained, .. } => counters.moves.record(drained.elapsed()),
            Self::Return => {}
        }
    }
}

/// One poller, as other threads see it.
pub struct Inbox {
    /// Which poller it is, among those of its daemon.
    pub index: usize,
    /// What the poller counts.
    pub counters: PollerCounters,
    waker: Arc<Waker>,
    /// Whether the thread is to look at what the lock protects. Raised after a change of that, and
    /// lowered before it looks: so a change that it has not seen raises the flag again.
    full: AtomicBool,
    state: Mutex<InboxState>,
}

struct InboxState {
    /// What has arrived; nothing if the thread has ended.
    arrivals: Option<Vec<Arrival>>,
    /// Whether its owner is gone, so that nothing is to be started any more.
    closed: bool,
}

impl Inbox {
    pub(super) fn new(index: usize, waker: Arc<Waker>) -> Self {
        Self {
            index,
            counters: PollerCounters::default(),
            waker,
            full: AtomicBool::new(false),
            state: Mutex::new(InboxState { arrivals: Some(Vec::new()), closed: false }),
        }
    }

    fn state(&self) -> MutexGuard<'_, InboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the thread: an order has been given to one of its queues.
    pub(super) fn wake(&self) {
        self.waker.wake();
    }

    /// Hands a queue over. It comes back if the thread has ended.
    pub(super) fn post(&self, arrival: Arrival) -> Result<(), Box<Arrival>> {
        match &mut self.state().arrivals {
            Some(arrivals) => arrivals.push(arrival),
            None => return Err(Box::new(arrival)),
        }
        self.ring();
        Ok(())
    }

    /// Nothing is to be started here any more: the thread ends with its last queue.
    pub(super) fn close(&self) {
        self.state().closed = true;
        self.ring();
    }

    fn ring(&self) {
        let early = mutant("runner.inbox.rings-before-it-is-full");
        if early {
            self.waker.wake();
        }
        self.full.store(true, Ordering::Release);
        if !early {
            self.waker.wake();
        }
    }

    /// Whether the thread is to look at it.
    pub(super) fn is_full(&self) -> bool {
        self.full.load(Ordering::Acquire)
    }

    /// Takes what has arrived.
    pub(super) fn empty(&self) -> Vec<Arrival> {
        let late = mutant("runner.inbox.lowers-its-flag-after-the-list");
        // Before the list is read: what comes later raises it again.
        if !late {
            self.full.store(false, Ordering::Release);
        }
        let arrivals = self.state().arrivals.as_mut().map(std::mem::take).unwrap_or_default();
        if late {
            self.full.store(false, Ordering::Release);
        }
        arrivals
    }

    /// Ends it if it is closed and nothing has arrived. Returns whether the thread may end.
    pub(super) fn end_if_closed(&self) -> bool {
        let mut state = self.state();
        let none = state.arrivals.as_ref().is_none_or(Vec::is_empty)
            || mutant("runner.inbox.ends-with-what-has-arrived");
        let over = state.closed && none;
        if over {
            state.arrivals = None;
        }
        over
    }
}

/// Ends an inbox with its thread, however that ends: a monitor must not wait for a thread that has
/// died.
pub(super) struct EndsInbox(pub Arc<Inbox>);

impl Drop for EndsInbox {
    fn drop(&mut self) {
        let left = self.0.state().arrivals.take();
        // Outside the lock: the monitors that wait for these hear of it.
        drop(left);
    }
}

/// The orders of one queue.
pub struct Orders {
    /// Whether the queue is to take nothing more; its thread looks at each turn.
    leave: Arc<AtomicBool>,
    state: Mutex<State>,
}

struct State {
    /// The poller that runs it, or that it is on its way to.
    at: Arc<Inbox>,
    next: Next,
}

/// What a queue does when nothing is in flight.
enum Next {
    Run,
    MoveTo(Arc<Inbox>),
    Stop,
}

impl Orders {
    pub(super) fn new(at: Arc<Inbox>) -> Self {
        let state = Mutex::new(State { at, next: Next::Run });
        Self { leave: Arc::default(), state }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the queue's task looks at.
    pub(super) fn leave_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.leave)
    }

    /// Tells the queue to stop; does not wait.
    pub fn stop(&self) {
        let mut state = self.state();
        state.next = Next::Stop;
        self.tell(&state);
    }

    /// Tells the queue to move; does not wait. Returns `false` if it has another order, or is
    /// there.
    pub fn move_to(&self, poller: &Arc<Inbox>) -> bool {
        let mut state = self.state();
        let may = matches!(state.next, Next::Run) && !Arc::ptr_eq(&state.at, poller);
        if may {
            state.next = Next::MoveTo(Arc::clone(poller));
            self.tell(&state);
        }
        may
    }

    fn tell(&self, state: &State) {
        if mutant("runner.orders.wake-before-the-flag") {
            state.at.wake();
            self.leave.store(true, Ordering::Release);
            return;
        }
        self.leave.store(true, Ordering::Release);
        // Under the lock: a queue that moves meanwhile is woken where it is then.
        state.at.wake();
    }

    /// Which poller it is on, and whether it has no order.
    pub fn place(&self) -> (usize, bool) {
        let state = self.state();
        (state.at.index, matches!(state.next, Next::Run))
    }

    /// Asked by its poller when nothing is in flight: where to, if not back to its monitor? From
    /// now on a queue that moves is at its destination.
    pub(super) fn depart(&self) -> Option<Arc<Inbox>> {
        let mut state = self.state();
        let next = std::mem::replace(&mut state.next, Next::Stop);
        let Next::MoveTo(to) = next else { return None };
        self.arrive(&mut state, &to);
        Some(to)
    }

    /// It comes to this poller though it has not been told to: its destination cannot run it. An
    /// order to stop that has come meanwhile stays.
    pub(super) fn divert(&self, to: &Arc<Inbox>) {
        let mut state = self.state();
        if matches!(state.next, Next::Stop) && !mutant("runner.orders.return-forgets-a-stop") {
            state.at = Arc::clone(to);
        } else {
            self.arrive(&mut state, to);
        }
    }

    fn arrive(&self, state: &mut State, at: &Arc<Inbox>) {
        if !mutant("runner.orders.do-not-follow-a-move") {
            state.at = Arc::clone(at);
        }
        state.next = Next::Run;
        self.leave.store(false, Ordering::Release);
    }
}

/// A queue that runs on a poller. Dropped without [`stop`](Self::stop), it stops by itself.
pub struct RunningQueue {
    pub(super) orders: Arc<Orders>,
    pub(super) ended: Receiver<Part>,
}

impl RunningQueue {
    /// Its orders, for who moves it.
    pub fn orders(&self) -> &Arc<Orders> {
        &self.orders
    }

    /// Asks it to take nothing more; does not wait.
    pub fn begin_stop(&self) {
        self.orders.stop();
    }

    /// Waits until nothing is in flight, and gives the queue back; `None` if it has panicked.
    pub fn stop(self) -> Option<Part> {
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
