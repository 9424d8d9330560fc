//! Discards of all queues of an image, merged into few calls to the host.
//!
//! A discard costs the host per call, not per byte, and file systems stop all direct I/O of the
//! file for it. So queues hand discards over to one thread. It carries them out in sweeps over the
//! disk in LBA order; discards that wait meanwhile are merged across requests and queues. While
//! guests read or write, it rests after each call ([`Pace`]), for at most `PATIENCE` per sweep.
//! An image has no such thread before its first discard, and a sleeping one when idle afterwards.
//!
//! A discard completes when it is done, never earlier, so ordering does not change: requests in
//! flight together have no order, and a flush covers what has completed. A discard that makes its
//! thread panic fails, and the thread goes on with the next.

mod pending;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use flowstone_block::{Clock, Completion, Errno, Extent, Outcome, Request};
use tracing::error;

use self::pending::{DiscardRun, Job, Pending};
use crate::runtime::completion_queue::{CompletionQueue, HandedOver};
use crate::runtime::discards::DiscardCounters;
use crate::runtime::pace::{Activity, Pace};
use crate::upkeep::Upkeep;

/// Duration after which a sweep goes on without rests.
const PATIENCE: Duration = Duration::from_secs(1);

/// Carries out the discard of one range; stays on the thread that created it.
pub type Trim = Box<dyn FnMut(Extent) -> Outcome>;
type MakeTrim = Box<dyn Fn() -> io::Result<Trim> + Send + Sync>;

/// The discards of an image.
pub struct Trims {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    is_by_hand: AtomicBool,
}

struct Shared {
    state: Mutex<State>,
    /// Signalled when there is work.
    wakeup: Condvar,
    /// Signalled when the thread must stop.
    alarm: Condvar,
    make_trim: MakeTrim,
    activity: Arc<Activity>,
    discards: Arc<DiscardCounters>,
    clock: Clock,
}

#[derive(Default)]
struct State {
    pending: Pending,
    stopping: bool,
}

impl Trims {
    /// No discards yet. `make_trim` is called on the thread, when needed; `activity` tells whether
    /// guests are active.
    pub fn new(
        activity: Arc<Activity>,
        discards: Arc<DiscardCounters>,
        clock: Clock,
        make_trim: impl Fn() -> io::Result<Trim> + Send + Sync + 'static,
    ) -> Self {
        let shared = Shared {
            state: Mutex::default(),
            wakeup: Condvar::new(),
            alarm: Condvar::new(),
            make_trim: Box::new(make_trim),
            activity,
            discards,
            clock,
        };
        Self {
            shared: Arc::new(shared),
            thread: Mutex::default(),
            is_by_hand: AtomicBool::new(false),
        }
    }

    /// Takes over a request that has an extent; it completes in the completion queue, some time
    /// after the next [`kick`](Self::kick).
    pub fn submit(&self, request: Box<Request>, reply_to: &Arc<CompletionQueue>) {
        let Some(extent) = request.op.extent() else {
            return reply_to.put(Completion { request, outcome: Err(Errno::INVAL) });
        };
        let waiting = self.shared.discards.come_in(request.op);
        let job = Job { extent, waiting, request: HandedOver::new(request, reply_to) };
        if let Err(error) = self.ensure_thread() {
            error!("cannot start a thread for discards: {error}");
            return job.reply(Err(Errno::AGAIN));
        }
        let mut state = self.shared.state();
        if state.stopping {
            drop(state);
            return job.reply(Err(Errno::IO));
        }
        state.pending.add(DiscardRun { extent, jobs: vec![job] });
    }

    /// Starts the submitted discards. Not called for each request: woken for the first one, the
    /// thread would have nothing to merge it with.
    pub fn kick(&self) {
        self.shared.wakeup.notify_one();
    }

    /// Returns the worker that carries out discards, in the place of a thread.
    pub fn by_hand(&self) -> TrimWorker {
        self.is_by_hand.store(true, Ordering::Relaxed);
        TrimWorker::new(Arc::clone(&self.shared))
    }

    fn ensure_thread(&self) -> io::Result<()> {
        if self.is_by_hand.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            let shared = Arc::clone(&self.shared);
            let builder = Builder::new().name("trims".into()).stack_size(256 << 10);
            *thread = Some(builder.spawn(|| shared.run())?);
        }
        Ok(())
    }

    /// Ends the thread. Nothing may be submitted afterwards.
    pub fn stop(&self) {
        self.shared.state().stopping = true;
        self.shared.wakeup.notify_one();
        self.shared.alarm.notify_one();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            error!("the thread for discards has panicked");
        }
    }
}

impl Drop for Trims {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(self: Arc<Self>) {
        let mut worker = TrimWorker::new(Arc::clone(&self));
        while let Some(run) = self.next() {
            let rest = worker.serve(run);
            self.rest(rest);
        }
    }

    fn next(&self) -> Option<DiscardRun> {
        let mut state = self.state();
        loop {
            if let Some(run) = state.pending.take(self.clock.now()) {
                return Some(run);
            }
            if state.stopping {
                return None;
            }
            state = self.wakeup.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Rests for `time`, so that the host serves the guests.
    fn rest(&self, time: Duration) {
        if time.is_zero() {
            return;
        }
        let state = self.state();
        let began = state.pending.sweep_began();
        let swept = began.map_or(Duration::ZERO, |began| self.clock.since(began));
        let time = time.min(PATIENCE.saturating_sub(swept));
        if !time.is_zero() {
            let _ = self.alarm.wait_timeout_while(state, time, |state| !state.stopping);
        }
    }
}

/// Carries out the discards of an image, on its thread or for a caller that steps it.
pub struct TrimWorker {
    shared: Arc<Shared>,
    trim: Option<Trim>,
    pace: Pace,
}

impl TrimWorker {
    fn new(shared: Arc<Shared>) -> Self {
        Self { shared, trim: None, pace: Pace::default() }
    }

    /// Carries out a run and returns how long to rest.
    fn serve(&mut self, run: DiscardRun) -> Duration {
        let began = self.shared.clock.now();
        if catch_unwind(AssertUnwindSafe(|| self.try_to_serve(run))).is_err() {
            error!("a discard has made its thread panic, and fails; the next ones go on");
            // The state of a discard that panicked is not reused.
            self.trim = None;
        }
        let now = self.shared.clock.now();
        self.pace.rest(now.duration_since(began), now, &self.shared.activity)
    }

    fn try_to_serve(&mut self, run: DiscardRun) {
        match self.prepare() {
            Ok(trim) => Self::carry_out(trim, run),
            Err(errno) => run.jobs.into_iter().for_each(|job| job.reply(Err(errno))),
        }
    }

    fn prepare(&mut self) -> Result<&mut Trim, Errno> {
        if self.trim.is_none() {
            let made = (self.shared.make_trim)();
            let made = made.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
            self.trim = Some(made);
        }
        Ok(self.trim.as_mut().expect("just made"))
    }

    /// If several requests share a failure, each is retried alone: only one of them may be at
    /// fault.
    fn carry_out(trim: &mut Trim, run: DiscardRun) {
        let outcome = trim(run.extent);
        let alone = run.jobs.len() == 1;
        for job in run.jobs {
            let tries_alone = outcome.is_err() && !alone;
            let outcome = if tries_alone { trim(job.extent) } else { outcome };
            job.reply(outcome);
        }
    }
}

/// The next discard, and the rest after it.
impl Upkeep for TrimWorker {
    fn is_due(&self) -> bool {
        !self.shared.state().pending.is_empty()
    }

    fn next(&self) -> Option<Instant> {
        None
    }

    fn turn(&mut self) {
        let next = self.shared.state().pending.take(self.shared.clock.now());
        let Some(run) = next else { return };
        let rest = self.serve(run);
        self.shared.clock.sleep(rest);
    }
}

#[cfg(test)]
mod tests;
