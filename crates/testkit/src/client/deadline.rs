//! A time limit on one vhost-user message.
//!
//! The wire crate retries a receive forever, so a hanging backend would hang its test. One thread
//! per session shuts the socket down when an armed deadline passes, which ends the receive.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use crate::{Error, Result};

#[derive(Clone, Copy, Debug)]
enum State {
    Idle,
    Armed(Instant),
    Fired,
    Closed,
}

/// Watches one socket. Dropping it ends the watch.
#[derive(Debug)]
pub(super) struct Deadline {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    socket: UnixStream,
}

impl Deadline {
    /// Starts watching a clone of the session's socket.
    pub(super) fn new(socket: UnixStream) -> Result<Self> {
        let state = Mutex::new(State::Idle);
        let shared = Arc::new(Shared { state, changed: Condvar::new(), socket });
        let watched = Arc::clone(&shared);
        thread::Builder::new()
            .name("vhost-deadline".into())
            .spawn(move || watched.watch())
            .map_err(|e| Error::io("start the deadline thread", e))?;
        Ok(Deadline { shared })
    }

    /// Starts the timer.
    pub(super) fn arm(&self, timeout: Duration) {
        self.shared.set(State::Armed(Instant::now() + timeout));
    }

    /// Stops the timer.
    pub(super) fn disarm(&self) {
        self.shared.set(State::Idle);
    }

    /// Returns whether the deadline has passed, and the socket has been shut down.
    pub(super) fn fired(&self) -> bool {
        matches!(*self.shared.lock(), State::Fired)
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        *self.shared.lock() = State::Closed;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock can panic")
    }

    /// Changes the state. An expired deadline stays expired: the socket is shut down.
    fn set(&self, next: State) {
        let mut state = self.lock();
        if matches!(*state, State::Idle | State::Armed(_)) {
            *state = next;
            self.changed.notify_all();
        }
    }

    fn watch(&self) {
        let mut state = self.lock();
        loop {
            state = match *state {
                State::Closed | State::Fired => return,
                State::Idle => self.changed.wait(state).expect("no holder of this lock can panic"),
                State::Armed(at) => match at.checked_duration_since(Instant::now()) {
                    Some(left) if !left.is_zero() => {
                        let woken = self.changed.wait_timeout(state, left);
                        woken.expect("no holder of this lock can panic").0
                    }
                    _ => {
                        // Ignores the error of a closed socket, on which no call can hang.
                        let _ = self.socket.shutdown(Shutdown::Both);
                        *state = State::Fired;
                        return;
                    }
                },
            };
        }
    }
}
