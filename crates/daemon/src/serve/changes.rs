//! The order of changes of disks and groups: each is made and persisted before the next one begins,
//! so that the last request takes effect last.
//!
//! The host of `state-dir` may hang, and a change that waits for another one has a place of the
//! control socket: it is refused after a while, and at once if that one has taken long already. So
//! a reload, which makes many changes, waits once.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use flowstone_block::{Error, Result, lock};

/// Time that a change waits for the one before it.
const PATIENCE: Duration = Duration::from_secs(10);

/// Lets one change be made at a time.
#[derive(Default)]
pub(super) struct Changes {
    /// When the change that is being made began.
    made_since: Mutex<Option<Instant>>,
    over: Condvar,
}

/// A change that is being made, until this is dropped, also by a panic.
pub(super) struct InOrder<'changes>(&'changes Changes);

impl Changes {
    /// Waits until no other change is being made; an error if that takes long.
    pub(super) fn begin(&self) -> Result<InOrder<'_>> {
        self.begin_within(PATIENCE)
    }

    fn begin_within(&self, patience: Duration) -> Result<InOrder<'_>> {
        let began = Instant::now();
        let mut made_since = lock(&self.made_since);
        while let Some(since) = *made_since {
            let until = began.min(since) + patience;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let why = "an earlier change is still being written to state-dir";
                return Err(Error::busy("a change", why, "check its host, and try again later"));
            }
            let woken = self.over.wait_timeout(made_since, left);
            (made_since, _) = woken.unwrap_or_else(PoisonError::into_inner);
        }
        *made_since = Some(Instant::now());
        Ok(InOrder(self))
    }
}

impl Drop for InOrder<'_> {
    fn drop(&mut self) {
        *lock(&self.0.made_since) = None;
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
        let hour = Duration::from_secs(3600);
        thread::scope(|scope| {
            let first = changes.begin_within(hour).unwrap();
            let waits = scope.spawn(|| changes.begin_within(hour).map(drop));
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
        let first = changes.begin_within(Duration::ZERO).unwrap();
        let refused = changes.begin_within(Duration::ZERO).map(drop).unwrap_err().to_string();
        assert!(refused.contains("an earlier change is still being written"), "{refused}");
        drop(first);
        changes.begin_within(Duration::ZERO).unwrap();
    }
}
