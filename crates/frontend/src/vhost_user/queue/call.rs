//! The descriptor of a queue's interrupts.

use std::fs::File;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The eventfd of a queue's interrupts, which the control plane may replace while the queue runs.
#[derive(Default)]
pub struct CallSlot(Mutex<Option<File>>);

impl CallSlot {
    fn lock(&self) -> MutexGuard<'_, Option<File>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the eventfd. Signals it at once: the last interrupt may have gone to an eventfd
    /// that has no reader any more, and a driver that waits for it would hang.
    pub fn replace(&self, event: Option<File>) {
        *self.lock() = event;
        self.signal();
    }

    pub(super) fn signal(&self) {
        if let Some(event) = &*self.lock() {
            // A full counter means that interrupts are pending anyway.
            let _ = rustix::io::write(event, &1u64.to_ne_bytes());
        }
    }
}
