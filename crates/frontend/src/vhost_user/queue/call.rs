//! Where interrupts go.

use std::fs::File;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Where interrupts go: an eventfd that the control plane may replace while the queue runs.
#[derive(Default)]
pub struct CallSlot(Mutex<Option<File>>);

impl CallSlot {
    fn lock(&self) -> MutexGuard<'_, Option<File>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Interrupts go here from now on. One is sent at once: the last may have gone to an event
    /// that has no reader any more, and a driver that waits for it waits for ever.
    pub fn replace(&self, event: Option<File>) {
        *self.lock() = event;
        self.signal();
    }

    pub(super) fn signal(&self) {
        if let Some(event) = &*self.lock() {
            // A full counter means that the monitor has interrupts enough.
            let _ = rustix::io::write(event, &1u64.to_ne_bytes());
        }
    }
}
