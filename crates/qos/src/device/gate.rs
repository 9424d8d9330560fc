//! What the thread of a file channel and others share of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use flowstone_block::Waker;

/// See the module.
pub struct DeviceGate {
    /// Whether another thread has let something of it go.
    granted: AtomicBool,
    waker: Arc<Waker>,
}

impl DeviceGate {
    pub fn new(waker: Arc<Waker>) -> Arc<Self> {
        Arc::new(Self { granted: AtomicBool::new(false), waker })
    }

    /// Something of it may go. Its thread is to be [woken](Self::wake).
    pub fn grant(&self) {
        self.granted.store(true, Ordering::Release);
    }

    pub fn wake(&self) {
        self.waker.wake();
    }

    pub fn is_granted(&self) -> bool {
        self.granted.load(Ordering::Acquire)
    }

    /// Before the scheduler is asked what has been granted.
    pub fn clear(&self) {
        self.granted.store(false, Ordering::Release);
    }
}
