//! The descriptor of a queue's interrupts.

use std::fs::File;
use std::sync::Mutex;

use flowstone_block::lock;

/// The eventfd of a queue's interrupts, which the control plane may replace while the queue runs.
#[derive(Default)]
pub struct CallSlot(Mutex<Option<File>>);

impl CallSlot {
    /// Replaces the eventfd. Signals it at once: the last interrupt may have gone to an eventfd
    /// that has no reader any more, and a driver that waits for it would hang.
    pub fn replace(&self, event: Option<File>) {
        *lock(&self.0) = event;
        self.signal();
    }

    pub(super) fn signal(&self) {
        if let Some(event) = &*lock(&self.0) {
            // A full counter means that interrupts are pending anyway.
            let _ = rustix::io::write(event, &1u64.to_ne_bytes());
        }
    }
}
