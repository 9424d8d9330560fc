//! State of a queue shared by its thread and others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use flowstone_block::Waker;

use crate::{DiskKey, QueueKey};

/// Tells a queue whether it is limited, and wakes it.
pub struct QueueGate {
    pub disk: DiskKey,
    pub queue: QueueKey,
    /// Whether chains may have to wait. Read for each batch.
    limited: AtomicBool,
    waker: Arc<Waker>,
}

impl QueueGate {
    pub fn new(disk: DiskKey, queue: QueueKey, waker: Arc<Waker>) -> Self {
        Self { disk, queue, limited: AtomicBool::new(false), waker }
    }

    pub fn set_limited(&self, limited: bool) {
        self.limited.store(limited, Ordering::Relaxed);
    }

    pub fn is_limited(&self) -> bool {
        self.limited.load(Ordering::Relaxed)
    }

    pub fn wake(&self) {
        self.waker.wake();
    }
}
