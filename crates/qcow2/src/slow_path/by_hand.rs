//! The slow path without threads: one request per turn.

use std::sync::Arc;
use std::time::Instant;

use flowstone_block::{Errno, lock};
use flowstone_image::Upkeep;

use super::worker::ASKS_MAX;
use super::{SlowPath, SlowPathWorker};

/// See the module.
pub struct SlowPathByHand {
    slow_path: Arc<SlowPath>,
    worker: Option<SlowPathWorker>,
    /// Number of times that the first request has asked for room.
    asks: u32,
}

impl SlowPath {
    /// Returns the worker that carries out requests, in the place of threads.
    pub fn by_hand(self: &Arc<Self>) -> SlowPathByHand {
        self.core.work_by_hand();
        SlowPathByHand { slow_path: Arc::clone(self), worker: None, asks: 0 }
    }
}

impl Upkeep for SlowPathByHand {
    fn is_due(&self) -> bool {
        !self.slow_path.core.asks_by_hand() && !lock(&self.slow_path.state).jobs.is_empty()
    }

    fn next(&self) -> Option<Instant> {
        None
    }

    /// A request that lacks room is retried when the maintenance worker has answered: all its steps
    /// are repeated.
    fn turn(&mut self) {
        let Some(mut job) = lock(&self.slow_path.state).jobs.pop_front() else { return };
        let outcome = self.slow_path.carry_out(job.request(), &mut self.worker);
        if outcome == Err(Errno::AGAIN) && self.asks < ASKS_MAX {
            self.asks += 1;
            lock(&self.slow_path.state).jobs.push_front(job);
            return;
        }
        self.asks = 0;
        job.reply(
            outcome.map_err(|errno| if errno == Errno::AGAIN { Errno::NOSPC } else { errno }),
        );
    }
}
