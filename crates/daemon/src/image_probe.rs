//! Queries to an image that may block: answered by the host, or under a lock held while the host is
//! slow. They run on a thread of the disk, at most one at a time, so a host that does not answer
//! delays no report.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use flowstone_block::{lock, mutated};
use flowstone_image::{Image, OwnState, Space};

/// Time that a report waits for the hosts of all its disks together.
pub const PATIENCE: Duration = Duration::from_secs(1);
/// The thread makes only a call or two.
const STACK_BYTES: usize = 128 << 10;

/// Answers of an image.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// `None` if the image cannot tell.
    pub space: Option<Space>,
    /// State that only images of its format have.
    pub own: Option<Arc<OwnState>>,
}

/// The latest known answer.
#[derive(Clone, Debug)]
pub struct Known {
    /// `None` if the image has never answered.
    pub told: Option<Told>,
    /// Age of the answer, if the image has not answered in time; without an answer, the time since
    /// it was asked.
    pub stale: Option<Duration>,
}

/// Queries one image.
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
    /// Time at which the running query started.
    asked: Option<Instant>,
    /// Whether the last query failed, because no thread could be started or it panicked.
    failed: bool,
    /// The last answer, and the time of its query.
    last: Option<(Instant, Told)>,
}

impl State {
    fn told(&self) -> Option<Told> {
        self.last.as_ref().map(|(_, told)| told.clone())
    }
}

impl Shared {
    /// Starts a query on a thread, unless one is running; does not wait.
    fn ask(self: &Arc<Self>, tell: impl FnOnce() -> Told + Send + 'static) {
        let mut state = lock(&self.state);
        let waits = mutated("daemon.probe.asks-beside-a-question", state.asked.is_some(), false);
        if waits {
            return;
        }
        state.asked = Some(Instant::now());
        drop(state);
        let question = Question(Arc::clone(self), None);
        let ask = move || {
            // Moves the whole value, so that it is dropped with this thread.
            let mut question = question;
            question.1 = Some(tell());
        };
        // If no thread can be started, the closure is dropped, which ends the query.
        let _ = Builder::new().name("stats".into()).stack_size(STACK_BYTES).spawn(ask);
    }

    /// Waits until no query is running.
    fn end(&self) {
        let state = lock(&self.state);
        drop(self.answered.wait_while(state, |state| state.asked.is_some()));
    }

    fn answer(&self, told: Option<Told>) {
        let mut state = lock(&self.state);
        let asked = state.asked.take();
        state.failed = told.is_none();
        if let (Some(at), Some(told)) = (asked, told) {
            state.last = Some((at, told));
        }
        self.answered.notify_all();
    }
}

/// A running query; dropping it ends the query, also on a panic.
struct Question(Arc<Shared>, Option<Told>);

impl Drop for Question {
    fn drop(&mut self) {
        self.0.answer(self.1.take());
    }
}

impl ImageProbe {
    /// Makes a probe and starts the first query.
    pub fn new(image: Arc<dyn Image>) -> Self {
        let probe = Self { image, shared: Arc::default() };
        probe.begin();
        probe
    }

    /// Starts a query, unless one is running; does not wait.
    pub fn begin(&self) {
        let image = Arc::clone(&self.image);
        // The image is dropped before the answer is stored: the waiting thread may then release the
        // disk.
        self.shared
            .ask(move || Told { space: image.space().ok(), own: image.own_state().map(Arc::new) });
    }

    /// Returns the last answer without waiting. Starts a query if it is older than `age`.
    pub fn last(&self, age: Duration) -> Told {
        let last = lock(&self.shared.state).last.clone();
        if last.as_ref().is_none_or(|(at, _)| at.elapsed() > age) {
            self.begin();
        }
        last.map(|(_, told)| told).unwrap_or_default()
    }

    /// After [`begin`](Self::begin): waits for the answer until `deadline`; not at all for an image
    /// that has not answered the previous report's query.
    pub fn known(&self, deadline: Instant) -> Known {
        let mut state = lock(&self.shared.state);
        while let Some(asked) = state.asked {
            let until = deadline.min(asked + PATIENCE);
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let since = state.last.as_ref().map_or(asked, |(at, _)| *at);
                return Known { told: state.told(), stale: Some(since.elapsed()) };
            }
            let woken = self.shared.answered.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        let age = state.last.as_ref().map(|(at, _)| at.elapsed());
        let stale = state.failed.then_some(age.unwrap_or_default());
        Known { told: state.told(), stale }
    }
}

impl Drop for ImageProbe {
    /// Waits for a running query, so that its thread does not drop the image last.
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
        assert!(lock(&shared.state).failed, "it has no answer");
    }
}
