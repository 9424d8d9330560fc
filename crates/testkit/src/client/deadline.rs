//! A time limit on one vhost-user message.
//!
//! The wire crate retries a receive forever, so a hanging backend would hang its test. One thread
//! per session shuts the socket down when an armed deadline passes, which ends the receive.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use crate::{Error, Result};

/// Watches one socket. Dropping it ends the watch.
#[derive(Debug)]
pub(super) struct Deadline {
    /// The time at which the socket is shut down, if it is armed.
    armed: Sender<Option<Instant>>,
    fired: Arc<AtomicBool>,
}

impl Deadline {
    /// Starts watching a clone of the session's socket.
    pub(super) fn new(socket: UnixStream) -> Result<Self> {
        let (armed, changes) = mpsc::channel();
        let fired = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&fired);
        thread::Builder::new()
            .name("vhost-deadline".into())
            .spawn(move || watch(&changes, &socket, &flag))
            .map_err(|e| Error::io("start the deadline thread", e))?;
        Ok(Deadline { armed, fired })
    }

    /// Starts the timer.
    pub(super) fn arm(&self, timeout: Duration) {
        self.set(Some(Instant::now() + timeout));
    }

    /// Stops the timer.
    pub(super) fn disarm(&self) {
        self.set(None);
    }

    /// Returns whether the deadline has passed, and the socket has been shut down.
    pub(super) fn fired(&self) -> bool {
        self.fired.load(Ordering::Acquire)
    }

    fn set(&self, armed: Option<Instant>) {
        // Fails when the deadline has passed: it stays so, as the socket is shut down.
        let _ = self.armed.send(armed);
    }
}

fn watch(changes: &Receiver<Option<Instant>>, socket: &UnixStream, fired: &AtomicBool) {
    let mut armed: Option<Instant> = None;
    loop {
        let change = match armed {
            None => changes.recv().map_err(RecvTimeoutError::from),
            Some(at) => changes.recv_timeout(at.saturating_duration_since(Instant::now())),
        };
        match change {
            Ok(change) => armed = change,
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                fired.store(true, Ordering::Release);
                // Ignores the error of a closed socket, on which no call can hang.
                let _ = socket.shutdown(Shutdown::Both);
                return;
            }
        }
    }
}
