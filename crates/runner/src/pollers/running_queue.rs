//! A queue that runs, in one form or the other. The thread that started it holds its handle, to
//! stop it; another thread may change its form meanwhile.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flowstone_block::mutated;
use tracing::{error, warn};

use super::form::{Form, QueueTasks};
use super::places::Places;
use crate::CpuList;
use crate::counters::QueueCounters;
use crate::task::{NotRun, Part, QueueSpec};

/// The handle of a running queue. Dropped without [`stop`](Self::stop), it stops.
pub struct QueueHandle(pub(super) Arc<RunningQueue>);

/// A running queue, whose form may change.
pub(super) struct RunningQueue {
    places: Arc<Places>,
    spec: QueueSpec,
    /// Locked while its form changes, until nothing is in flight and it runs again.
    state: Mutex<State>,
    /// Whether the monitor has asked it to stop: then it is not run again in any form.
    is_to_stop: AtomicBool,
}

enum State {
    Runs(QueueTasks),
    /// Not running. Holds the queue if it can run in neither form for now; `None` if it has
    /// panicked or has been stopped.
    Over(Option<Box<dyn Part>>),
}

impl QueueHandle {
    pub(super) fn run(
        places: Arc<Places>,
        form: Form,
        queue: Box<dyn Part>,
        mut spec: QueueSpec,
    ) -> io::Result<Self> {
        let is_placed = places.topology.matters();
        let is_placed = mutated("runner.pollers.place-anywhere", is_placed, false);
        spec.home = if is_placed { queue.home() } else { None };
        let tasks = places.run(form, queue, &spec).map_err(|not_run| not_run.error)?;
        spec.counters.runs_as(form == Form::Split);
        let state = Mutex::new(State::Runs(tasks));
        let is_to_stop = AtomicBool::new(false);
        Ok(Self(Arc::new(RunningQueue { places, spec, state, is_to_stop })))
    }

    /// Asks it to take nothing more; does not wait.
    pub fn begin_stop(&self) {
        self.0.is_to_stop.store(true, Ordering::Release);
        // A queue whose form changes takes nothing more already, and sees the flag before it runs
        // again.
        if let Ok(state) = self.0.state.try_lock()
            && let State::Runs(tasks) = &*state
        {
            tasks.begin_stop();
        }
    }

    /// Waits until nothing is in flight and returns the queue; `None` if it has panicked.
    pub fn stop(self) -> Option<Box<dyn Part>> {
        self.begin_stop();
        let state = std::mem::replace(&mut *self.0.state(), State::Over(None));
        match state {
            State::Runs(tasks) => tasks.stop(),
            State::Over(queue) => queue,
        }
    }
}

impl Drop for QueueHandle {
    /// Stops the queue here, not when the form changer drops its last reference: this joins
    /// threads.
    fn drop(&mut self) {
        self.0.is_to_stop.store(true, Ordering::Release);
        let state = std::mem::replace(&mut *self.0.state(), State::Over(None));
        drop(state);
    }
}

impl RunningQueue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_to_stop(&self) -> bool {
        self.is_to_stop.load(Ordering::Acquire)
    }

    pub fn counters(&self) -> &QueueCounters {
        &self.spec.counters
    }

    /// See [`Places::cpus_of_second`].
    pub fn cpus_of_second(&self) -> Option<CpuList> {
        self.places.cpus_of_second(&self.spec)
    }

    /// Changes its form; waits until nothing is in flight. Returns whether it has that form now.
    pub fn change(&self, form: Form) -> bool {
        let mut state = self.state();
        let tasks = match std::mem::replace(&mut *state, State::Over(None)) {
            State::Runs(tasks) => tasks,
            over => {
                *state = over;
                return false;
            }
        };
        let Some(queue) = tasks.stop() else {
            error!(queue = ?self.spec.origin, "a queue has panicked; its form does not change");
            return false;
        };
        if self.is_to_stop() {
            // It would run without the limits of its disk.
            *state = State::Over(Some(queue));
            return false;
        }
        match self.places.run(form, queue, &self.spec) {
            Ok(tasks) => {
                *state = State::Runs(tasks);
                self.counters().runs_as(form == Form::Split);
                self.counters().form_changed();
                true
            }
            Err(NotRun { error, part }) => {
                warn!(%error, "a queue cannot run in another form; it keeps the one it had");
                let (back, error) = self.run_again(form.other(), part);
                if let Some(error) = error {
                    error!(%error, queue = ?self.spec.origin, "a queue cannot run for now");
                }
                *state = back;
                false
            }
        }
    }

    fn run_again(&self, form: Form, queue: Option<Box<dyn Part>>) -> (State, Option<io::Error>) {
        let Some(queue) = queue else { return (State::Over(None), None) };
        match self.places.run(form, queue, &self.spec) {
            Ok(tasks) => (State::Runs(tasks), None),
            Err(NotRun { error, part }) => (State::Over(part), Some(error)),
        }
    }

    /// Tries once more to run a queue that could run in neither form. Returns whether it still
    /// cannot; its guest waits.
    pub fn is_stranded(&self) -> bool {
        let Ok(mut state) = self.state.try_lock() else { return false };
        if self.is_to_stop() || !matches!(*state, State::Over(Some(_))) {
            return false;
        }
        if let State::Over(queue) = std::mem::replace(&mut *state, State::Over(None)) {
            let is_split = self.counters().is_split.load(Ordering::Relaxed);
            let form = if is_split { Form::Split } else { Form::Fused };
            (*state, _) = self.run_again(form, queue);
        }
        matches!(*state, State::Over(Some(_)))
    }
}

#[cfg(test)]
mod tests;
