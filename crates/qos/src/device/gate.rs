//! State of a file channel shared by its thread and others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use flowstone_block::Waker;

/// Tells a file channel about grants made by other threads.
pub struct DeviceGate {
    /// Whether another thread has made a grant to the channel.
    granted: AtomicBool,
    waker: Arc<Waker>,
}

impl DeviceGate {
    pub fn new(waker: Arc<Waker>) -> Arc<Self> {
        Arc::new(Self { granted: AtomicBool::new(false), waker })
    }

    /// Records a grant. The caller also [wakes](Self::wake) the channel's thread.
    pub fn grant(&self) {
        self.granted.store(true, Ordering::Release);
    }

    pub fn wake(&self) {
        self.waker.wake();
    }

    pub fn is_granted(&self) -> bool {
        self.granted.load(Ordering::Acquire)
    }

    /// Called before the grants are read from the scheduler.
    pub fn clear(&self) {
        self.granted.store(false, Ordering::Release);
    }
}
