//! The order of changes of disks and groups: each is made and persisted before the next one begins,
//! so that the last request takes effect last.
//!
//! The host of `state-dir` may hang, and a change that waits for another one has a place of the
//! control socket: it is refused after a while.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use flowstone_block::{Error, Result};

/// Time that a change waits for the one before it.
const PATIENCE: Duration = Duration::from_secs(10);

/// Lets one change be made at a time.
#[derive(Default)]
pub(super) struct Changes {
    is_made: Mutex<bool>,
    over: Condvar,
}

/// A change that is being made, until this is dropped, also by a panic.
pub(super) struct InOrder<'changes>(&'changes Changes);

impl Changes {
    fn is_made(&self) -> MutexGuard<'_, bool> {
        self.is_made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no other change is being made; an error if that takes long.
    pub(super) fn begin(&self) -> Result<InOrder<'_>> {
        self.begin_by(Instant::now() + PATIENCE)
    }

    fn begin_by(&self, until: Instant) -> Result<InOrder<'_>> {
        let left = until.saturating_duration_since(Instant::now());
        let waited = self.over.wait_timeout_while(self.is_made(), left, |is_made| *is_made);
        let (mut is_made, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if *is_made {
            let why = "an earlier change is still being written to state-dir";
            return Err(Error::busy("a change", why, "check its host, and try again later"));
        }
        *is_made = true;
        Ok(InOrder(self))
    }
}

impl Drop for InOrder<'_> {
    fn drop(&mut self) {
        *self.0.is_made() = false;
        self.0.over.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_change_whose_thread_panics_does_not_hold_up_the_next_one() {
        let changes = Changes::default();
        let hour = Instant::now() + Duration::from_secs(3600);
        thread::scope(|scope| {
            let first = changes.begin_by(hour).unwrap();
            let waits = scope.spawn(|| changes.begin_by(hour).map(drop));
            let dies = scope.spawn(move || {
                let _in_order = first;
                panic!("the mistake")
            });
            assert!(dies.join().is_err_and(|panic| panic.is::<&str>()));
            waits.join().unwrap().unwrap();
        });
    }

    #[test]
    fn a_change_that_waits_for_long_is_refused_and_the_next_one_is_made() {
        let changes = Changes::default();
        let first = changes.begin_by(Instant::now()).unwrap();
        let refused = changes.begin_by(Instant::now()).map(drop).unwrap_err().to_string();
        assert!(refused.contains("an earlier change is still being written"), "{refused}");
        drop(first);
        changes.begin_by(Instant::now()).unwrap();
    }
}
