//! What of an image only its host can tell, or is counted under a lock that the host may hold up:
//! asked by a thread of that disk. A host that does not answer so holds up no report, and has one
//! thread of its disk at most.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use flowstone_block::mutant;
use flowstone_image::{Image, LogState, Space};

/// How long a report waits for the hosts of all its disks together.
pub const PATIENCE: Duration = Duration::from_secs(1);
/// The thread makes a call or two.
const STACK_BYTES: usize = 128 << 10;

/// What an image has told.
#[derive(Clone, Copy, Debug, Default)]
pub struct Told {
    /// Nothing if the image cannot tell.
    pub space: Option<Space>,
    pub log: Option<LogState>,
}

/// The last that is known.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// Nothing if it has never answered.
    pub told: Option<Told>,
    /// How old that is, if the image has not answered in time; or for how long it has not.
    pub stale: Option<Duration>,
}

/// Asks one image.
pub struct ImageProbe {
    image: Arc<dyn Image>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    answered: Condvar,
}

#[derive(Default)]
struct State {
    /// Since when a thread has been asking.
    asked: Option<Instant>,
    /// Whether no thread could ask the last time.
    failed: bool,
    /// The last answer, and when it was asked for.
    last: Option<(Instant, Told)>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks on a thread, unless one is asking already; does not wait.
    fn ask(self: &Arc<Self>, tell: impl FnOnce() -> Told + Send + 'static) {
        let mut state = self.state();
        if state.asked.is_some() && !mutant("daemon.probe.asks-beside-a-question") {
            return;
        }
        state.asked = Some(Instant::now());
        drop(state);
        let question = Question(Arc::clone(self), None);
        let ask = move || {
            // As a whole: it is to end with this thread.
            let mut question = question;
            question.1 = Some(tell());
        };
        // Without a thread it is not asked; the question ends with what was to run.
        let _ = Builder::new().name("stats".into()).stack_size(STACK_BYTES).spawn(ask);
    }

    /// Waits until no thread asks.
    fn end(&self) {
        let state = self.state();
        drop(self.answered.wait_while(state, |state| state.asked.is_some()));
    }

    fn answer(&self, told: Option<Told>) {
        let mut state = self.state();
        let asked = state.asked.take();
        state.failed = told.is_none();
        if let (Some(at), Some(told)) = (asked, told) {
            state.last = Some((at, told));
        }
        self.answered.notify_all();
    }
}

/// Ends the question, however its thread ends.
struct Question(Arc<Shared>, Option<Told>);

impl Drop for Question {
    fn drop(&mut self) {
        self.0.answer(self.1);
    }
}

impl ImageProbe {
    /// Asks it for the first time.
    pub fn new(image: Arc<dyn Image>) -> Self {
        let probe = Self { image, shared: Arc::default() };
        probe.begin();
        probe
    }

    /// Asks, unless a thread is asking already; does not wait.
    pub fn begin(&self) {
        let image = Arc::clone(&self.image);
        // The image goes before the answer: who hears of that may let go of the disk.
        self.shared.ask(move || Told { space: image.space().ok(), log: image.log_state() });
    }

    /// What is known, without asking or waiting. It is asked beside if that is older than `age`.
    pub fn last(&self, age: Duration) -> Told {
        let last = self.shared.state().last;
        if last.is_none_or(|(at, _)| at.elapsed() > age) {
            self.begin();
        }
        last.map(|(_, told)| told).unwrap_or_default()
    }

    /// After [`begin`](Self::begin): waits for the answer, until `deadline` at most; for an image
    /// that did not answer the report before this one, not at all.
    pub fn known(&self, deadline: Instant) -> Known {
        let mut state = self.shared.state();
        while let Some(asked) = state.asked {
            let until = deadline.min(asked + PATIENCE);
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let told = state.last.map(|(_, told)| told);
                let since = state.last.map_or(asked, |(at, _)| at);
                return Known { told, stale: Some(since.elapsed()) };
            }
            let woken = self.shared.answered.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        let age = state.last.map(|(at, _)| at.elapsed());
        let stale = state.failed.then_some(age.unwrap_or_default());
        Known { told: state.last.map(|(_, told)| told), stale }
    }
}

impl Drop for ImageProbe {
    /// Its end is not to be left to a thread that asks.
    fn drop(&mut self) {
        self.shared.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_that_panics_when_it_is_asked_is_not_waited_for() {
        let shared = Arc::<Shared>::default();
        shared.ask(|| panic!("the mistake"));
        shared.end();
        assert!(shared.state().failed, "it has no answer");
    }
}
