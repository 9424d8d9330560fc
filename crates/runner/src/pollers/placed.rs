//! A queue that runs in one form, and the threads of its own.

use flowstone_block::mutated;

use crate::poller::{PollerThread, RunningQueue};
use crate::queue_run::Part;

/// The form of a queue: one thread or two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// One thread does everything.
    Fused,
    /// One thread takes requests, the other one submits and completes them.
    Split,
}

impl Form {
    /// Returns the other form.
    pub fn other(self) -> Self {
        match self {
            Self::Fused => Self::Split,
            Self::Split => Self::Fused,
        }
    }
}

/// A running queue, and the threads of its own, if it has any.
pub(super) struct Placed {
    // Before the threads: these end when their queues have stopped.
    /// The whole queue, or its front half.
    pub queue: RunningQueue,
    /// The back half of a split queue.
    pub back: Option<RunningQueue>,
    pub threads: Vec<PollerThread>,
}

impl Placed {
    /// Asks it to take nothing more; does not wait.
    pub fn begin_stop(&self) {
        // Only the front: the back is needed until all chains have been returned.
        self.queue.begin_stop();
    }

    /// Waits until nothing is in flight and returns the queue; `None` if it has panicked.
    pub fn stop(self) -> Option<Part> {
        let Self { queue, back, threads: _threads } = self;
        let queue = queue.stop();
        let Some(back) = back else { return queue };
        // Both, even if one has panicked: requests in flight use the guest's memory and ring.
        let has_stopped = queue.is_some();
        let stops = mutated("runner.pollers.stop-leaves-the-other-half", true, has_stopped);
        if !stops {
            return None;
        }
        let back = back.stop();
        queue?.join(back?)
    }
}
