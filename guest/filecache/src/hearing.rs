//! The observations of the source by all threads, and the resulting state.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Instant;

use flowstone_memory::mutated;
use rustix::io::{Errno, Result};

use crate::health::SourceState;
use crate::lock::lock;

/// Observations of the source; see the module.
#[derive(Debug, Default)]
pub struct Hearing {
    answered: AtomicBool,
    failed: AtomicBool,
    state: AtomicU8,
    /// Calls of background threads, with their start times.
    background: Mutex<BTreeMap<u64, Instant>>,
    next: AtomicU64,
}

/// A background thread is in a call to the source until this is dropped.
pub struct Asking<'a>(&'a Hearing, u64);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        lock(&self.0.background).remove(&self.1);
    }
}

/// Returns whether an error is independent of the file: the call did not reach the source.
fn is_trouble(error: Errno) -> bool {
    matches!(
        error,
        Errno::IO
            | Errno::TIMEDOUT
            | Errno::NOTCONN
            | Errno::CONNREFUSED
            | Errno::CONNABORTED
            | Errno::CONNRESET
            | Errno::HOSTDOWN
            | Errno::HOSTUNREACH
            | Errno::NETDOWN
            | Errno::NETUNREACH
            | Errno::REMOTEIO
    )
}

impl Hearing {
    /// Records an answer of the source.
    pub fn heard<T>(&self, answer: &Result<T>) {
        let failed = answer.as_ref().err().is_some_and(|error| is_trouble(*error));
        let heard = if failed { &self.failed } else { &self.answered };
        // Written once between two checks: the cache line is shared by all request threads.
        if !heard.load(Ordering::Relaxed) {
            heard.store(true, Ordering::Relaxed);
        }
    }

    /// Records that a background thread is about to call the source.
    pub fn asks(&self) -> Asking<'_> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        lock(&self.background).insert(number, Instant::now());
        Asking(self, number)
    }

    /// Returns the start of the oldest background call.
    pub fn oldest(&self) -> Option<Instant> {
        lock(&self.background).values().min().copied()
    }

    /// Returns whether calls were answered, and whether some failed, since the last call of this.
    pub fn since_last(&self) -> (bool, bool) {
        let take = |heard: &AtomicBool| heard.swap(false, Ordering::Relaxed);
        (take(&self.answered), take(&self.failed))
    }

    /// Sets the state of the source.
    pub fn set(&self, state: SourceState) {
        self.state.store(state as u8, Ordering::Relaxed);
    }

    /// Returns the state of the source.
    pub fn state(&self) -> SourceState {
        let states = [SourceState::Up, SourceState::Suspect, SourceState::Down];
        let state = states.into_iter().find(|it| *it as u8 == self.state.load(Ordering::Relaxed));
        state.unwrap_or_default()
    }

    /// Returns whether the source is down.
    pub fn is_down(&self) -> bool {
        let is_down = self.state() == SourceState::Down;
        mutated("guest.trouble.asks-a-source-that-is-down", is_down, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_source_says_of_a_file_is_an_answer_and_trouble_on_the_way_is_none() {
        let hearing = Hearing::default();
        hearing.heard::<()>(&Err(Errno::NOENT));
        assert_eq!(hearing.since_last(), (true, false));
        hearing.heard::<()>(&Err(Errno::NOTCONN));
        assert_eq!(hearing.since_last(), (false, true));
        hearing.heard(&Ok(()));
        assert_eq!(hearing.since_last(), (true, false));
        assert_eq!(hearing.since_last(), (false, false));
    }

    #[test]
    fn the_state_is_the_last_one_that_was_set() {
        let hearing = Hearing::default();
        assert_eq!(hearing.state(), SourceState::Up);
        for state in [SourceState::Down, SourceState::Suspect, SourceState::Up] {
            hearing.set(state);
            assert_eq!(hearing.state(), state);
        }
    }
}
