//! Runs the queues of a disk with a limit: those that are stopped do not wait for tokens.

use std::io;
use std::sync::Arc;

use flowstone_frontend::vhost_user::{QueueRunner, VirtQueue};

use crate::qos_config::DiskLimits;

/// See the module.
pub struct LimitedRunner<R> {
    runner: R,
    limits: Arc<DiskLimits>,
}

impl<R: QueueRunner> LimitedRunner<R> {
    /// Queues that `runner` runs, of the disk with these limits.
    pub fn new(runner: R, limits: Arc<DiskLimits>) -> Self {
        Self { runner, limits }
    }
}

impl<R: QueueRunner> QueueRunner for LimitedRunner<R> {
    fn start(&mut self, index: usize, queue: VirtQueue) -> io::Result<()> {
        self.limits.start_queue(index as u16);
        self.runner.start(index, queue)
    }

    fn begin_stop(&mut self, index: usize) {
        // First: what comes after this stays in the ring.
        self.runner.begin_stop(index);
        self.limits.stop_queue(index as u16);
    }

    fn stop(&mut self, index: usize) -> Option<u16> {
        self.begin_stop(index);
        self.runner.stop(index)
    }
}
