//! Arrival of a queue at a poller's thread, and its departure: to another poller, or to stop.
//!
//! Both departures begin in the same way: the queue takes nothing more until nothing is in flight.
//! Only then does its poller read the order, so a later order to stop still takes effect, wherever
//! the queue is.

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use flowstone_block::sync::atomic::{AtomicBool, Ordering};
use flowstone_block::sync::mpsc::{Receiver, SyncSender};
use flowstone_block::sync::{Mutex, MutexGuard};
use flowstone_block::{Waker, mutated};

use super::counters::PollerCounters;
use crate::task::{NotRun, Part, QueueSpec};

/// A part on its way to a poller.
pub(super) struct Arrival {
    pub part: Box<dyn Part>,
    pub spec: QueueSpec,
    pub orders: Arc<Orders>,
    pub ended: SyncSender<Box<dyn Part>>,
    pub cause: Cause,
}

/// Reason of an arrival.
pub(super) enum Cause {
    /// The queue is started; the thread that starts it waits for the result, and gets it back on
    /// failure.
    Start(SyncSender<Result<(), NotRun>>),
    /// The queue was moved from another poller, where it was drained at `drained`.
    Move { from: Arc<Inbox>, drained: Instant },
    /// The queue could not run where it was moved to, and returns.
    Return,
}

impl Cause {
    /// Reports that the queue runs.
    pub fn succeed(self, counters: &PollerCounters) {
        match self {
            Self::Start(started) => drop(started.send(Ok(()))),
            Self::Move { drained, .. } => counters.moves.record(drained.elapsed()),
            Self::Return => {}
        }
    }
}

/// The side of a poller that other threads see.
pub struct Inbox {
    /// Index of the poller in the daemon.
    pub index: usize,
    /// Counters of the poller.
    pub counters: PollerCounters,
    waker: Arc<Waker>,
    /// Whether the thread has to look at `state`. Set after each change of `state`, cleared before
    /// the thread reads it: a change that it misses sets the flag again.
    full: AtomicBool,
    state: Mutex<InboxState>,
}

struct InboxState {
    /// Queues that have arrived; `None` once the thread has ended.
    arrivals: Option<Vec<Arrival>>,
    /// Whether the owner is gone: nothing more is started.
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

    /// Wakes the thread after an order to one of its queues.
    pub(super) fn wake(&self) {
        self.waker.wake();
    }

    /// Hands a queue over. Returns it if the thread has ended.
    pub(super) fn post(&self, arrival: Arrival) -> Result<(), Box<Arrival>> {
        match &mut self.state().arrivals {
            Some(arrivals) => arrivals.push(arrival),
            None => return Err(Box::new(arrival)),
        }
        self.ring();
        Ok(())
    }

    /// Returns whether the thread has ended.
    pub fn has_ended(&self) -> bool {
        self.state().arrivals.is_none()
    }

    /// Closes the inbox: nothing more is started, and the thread ends with its last queue.
    pub(super) fn close(&self) {
        self.state().closed = true;
        self.ring();
    }

    fn ring(&self) {
        let rings_last = mutated("runner.inbox.rings-before-it-is-full", true, false);
        if !rings_last {
            self.waker.wake();
        }
        self.full.store(true, Ordering::Release);
        if rings_last {
            self.waker.wake();
        }
    }

    /// Returns whether the thread has to look at the inbox.
    pub(super) fn is_full(&self) -> bool {
        self.full.load(Ordering::Acquire)
    }

    /// Takes the queues that have arrived.
    pub(super) fn empty(&self) -> Vec<Arrival> {
        // Before the list is read: what comes later raises it again.
        let lowers_first = mutated("runner.inbox.lowers-its-flag-after-the-list", true, false);
        if lowers_first {
            self.full.store(false, Ordering::Release);
        }
        let arrivals = self.state().arrivals.as_mut().map(std::mem::take).unwrap_or_default();
        if !lowers_first {
            self.full.store(false, Ordering::Release);
        }
        arrivals
    }

    /// Ends the inbox if it is closed and empty. Returns whether the thread may end.
    pub(super) fn end_if_closed(&self) -> bool {
        let mut state = self.state();
        let none = state.arrivals.as_ref().is_none_or(Vec::is_empty);
        let none = mutated("runner.inbox.ends-with-what-has-arrived", none, true);
        let over = state.closed && none;
        if over {
            state.arrivals = None;
        }
        over
    }
}

/// Ends an inbox with its thread, also on a panic: a monitor must not wait for a dead thread.
pub(super) struct EndsInbox(pub Arc<Inbox>);

impl Drop for EndsInbox {
    fn drop(&mut self) {
        let left = self.0.state().arrivals.take();
        // Outside the lock: dropping these notifies the monitors that wait for them.
        drop(left);
    }
}

/// The orders of one queue.
pub struct Orders {
    /// Whether the queue is to take nothing more; read by its task in each turn.
    leave: Arc<AtomicBool>,
    state: Mutex<State>,
}

struct State {
    /// The poller that runs it, or that it is moving to.
    at: Arc<Inbox>,
    next: Next,
}

/// The order that takes effect when nothing is in flight.
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

    /// Returns the flag that the queue's task reads.
    pub(super) fn leave_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.leave)
    }

    /// Tells the queue to stop; does not wait.
    pub fn stop(&self) {
        let mut state = self.state();
        state.next = Next::Stop;
        self.tell(&state);
    }

    /// Tells the queue to move; does not wait. Returns `false` if it has another order or is there
    /// already.
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
        let wakes_last = mutated("runner.orders.wake-before-the-flag", true, false);
        if !wakes_last {
            state.at.wake();
        }
        self.leave.store(true, Ordering::Release);
        // Under the lock: a queue that moves meanwhile is woken at its new poller.
        if wakes_last {
            state.at.wake();
        }
    }

    /// Returns the index of its poller, and whether it has no order.
    pub fn place(&self) -> (usize, bool) {
        let state = self.state();
        (state.at.index, matches!(state.next, Next::Run))
    }

    /// Called by its poller when nothing is in flight: returns the destination of a move, `None`
    /// for a stop. From then on a moving queue counts as being at its destination.
    pub(super) fn depart(&self) -> Option<Arc<Inbox>> {
        let mut state = self.state();
        let next = std::mem::replace(&mut state.next, Next::Stop);
        let Next::MoveTo(to) = next else { return None };
        self.arrive(&mut state, &to);
        Some(to)
    }

    /// Redirects the queue to `to` because its destination cannot run it. An order to stop given
    /// meanwhile stays.
    pub(super) fn divert(&self, to: &Arc<Inbox>) {
        let mut state = self.state();
        let stops = matches!(state.next, Next::Stop);
        let stops = mutated("runner.orders.return-forgets-a-stop", stops, false);
        if stops {
            state.at = Arc::clone(to);
        } else {
            self.arrive(&mut state, to);
        }
    }

    fn arrive(&self, state: &mut State, at: &Arc<Inbox>) {
        let follows = mutated("runner.orders.do-not-follow-a-move", true, false);
        if follows {
            state.at = Arc::clone(at);
        }
        state.next = Next::Run;
        self.leave.store(false, Ordering::Release);
    }
}

/// The handle of a task on a poller. Dropped without [`stop`](Self::stop), the task stops
/// asynchronously.
pub struct TaskHandle {
    pub(super) orders: Arc<Orders>,
    pub(super) ended: Receiver<Box<dyn Part>>,
}

impl TaskHandle {
    /// Returns its orders, for moving it.
    pub fn orders(&self) -> &Arc<Orders> {
        &self.orders
    }

    /// Asks it to take nothing more; does not wait.
    pub fn begin_stop(&self) {
        self.orders.stop();
    }

    /// Waits until nothing is in flight and returns the queue; `None` if it has panicked.
    pub fn stop(self) -> Option<Box<dyn Part>> {
        self.begin_stop();
        self.ended.recv().ok()
    }
}

impl Drop for TaskHandle {
    fn drop(&mut self) {
        // Its thread, which may be joined next, ends with its queues.
        self.begin_stop();
    }
}
