//! Stand-in for `std::sync::mpsc::sync_channel`: loom's channel does not report that its other end
//! is gone.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{RecvError, SendError};

use loom::sync::{Condvar, Mutex, MutexGuard};

struct Shared<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    sent: VecDeque<T>,
    /// The sender exists; the receiver exists.
    ends: [bool; 2],
}

/// The sending end; never waits.
pub struct SyncSender<T>(Arc<Shared<T>>);

/// The receiving end.
pub struct Receiver<T>(Arc<Shared<T>>);

/// Makes a channel whose capacity is never exceeded by its users.
pub fn sync_channel<T>(_room: usize) -> (SyncSender<T>, Receiver<T>) {
    let state = Mutex::new(State { sent: VecDeque::new(), ends: [true; 2] });
    let shared = Arc::new(Shared { state, changed: Condvar::new() });
    (SyncSender(Arc::clone(&shared)), Receiver(shared))
}

impl<T> Shared<T> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().expect("no thread of a model outlives a panic")
    }

    fn end(&self, end: usize) {
        // After a panic the model is over: loom takes no more steps.
        if !std::thread::panicking() {
            self.state().ends[end] = false;
            self.changed.notify_all();
        }
    }
}

impl<T> SyncSender<T> {
    /// Passes a value to the receiver.
    pub fn send(&self, value: T) -> Result<(), SendError<T>> {
        let mut state = self.0.state();
        if !state.ends[1] {
            return Err(SendError(value));
        }
        state.sent.push_back(value);
        self.0.changed.notify_all();
        Ok(())
    }
}

impl<T> Receiver<T> {
    /// Waits for a value, or for the sender to be dropped.
    pub fn recv(&self) -> Result<T, RecvError> {
        let mut state = self.0.state();
        loop {
            if let Some(value) = state.sent.pop_front() {
                return Ok(value);
            }
            if !state.ends[0] {
                return Err(RecvError);
            }
            state = self.0.changed.wait(state).expect("as above");
        }
    }
}

impl<T> Drop for SyncSender<T> {
    fn drop(&mut self) {
        self.0.end(0);
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.0.end(1);
    }
}
