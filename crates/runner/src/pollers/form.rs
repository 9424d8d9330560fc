//! The forms of a queue, and its tasks in one of them.

use flowstone_block::mutated;

use crate::poller::{PollerThread, TaskHandle};
use crate::task::Part;

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

/// The tasks of a running queue, and the threads of its own, if it has any.
pub(super) struct QueueTasks {
    // Before the threads: these end when their queues have stopped.
    /// The whole queue, or its front half.
    pub first: TaskHandle,
    /// The back half of a split queue.
    pub back: Option<TaskHandle>,
    pub threads: Vec<PollerThread>,
}

impl QueueTasks {
    /// Asks it to take nothing more; does not wait.
    pub fn begin_stop(&self) {
        // Only the front: the back is needed until all chains have been returned.
        self.first.begin_stop();
    }

    /// Waits until nothing is in flight and returns the queue; `None` if it has panicked.
    pub fn stop(self) -> Option<Box<dyn Part>> {
        let Self { first, back, threads: _threads } = self;
        let first = first.stop();
        let Some(back) = back else { return first };
        // Both, even if one has panicked: requests in flight use the guest's memory and ring.
        let stops = mutated("runner.pollers.stop-leaves-the-other-half", true, first.is_some());
        if !stops {
            return None;
        }
        let back = back.stop();
        first?.join(back?)
    }
}
