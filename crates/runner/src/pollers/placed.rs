//! A queue that runs in one form, and the threads that only it uses.

use flowstone_block::mutant;

use crate::poller::{PollerThread, RunningQueue};
use crate::queue_run::Part;

/// How many threads a queue runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// One does everything.
    Fused,
    /// One takes requests, the other one submits and completes them.
    Split,
}

impl Form {
    /// The one that this is not.
    pub fn other(self) -> Self {
        match self {
            Self::Fused => Self::Split,
            Self::Split => Self::Fused,
        }
    }
}

/// A queue that runs, and the threads that only it uses, if it has any.
pub(super) struct Placed {
    // Before the threads: these end when their queues have stopped.
    /// All of it, or the half that takes requests.
    pub queue: RunningQueue,
    /// The half that completes them, if that is another one.
    pub back: Option<RunningQueue>,
    pub threads: Vec<PollerThread>,
}

impl Placed {
    /// Asks it to take nothing more; does not wait.
    pub fn begin_stop(&self) {
        // The other half is needed until all has come back.
        self.queue.begin_stop();
    }

    /// Waits until nothing is in flight, and gives the queue back; `None` if it has panicked.
    pub fn stop(self) -> Option<Part> {
        let Self { queue, back, threads: _threads } = self;
        let queue = queue.stop();
        let Some(back) = back else { return queue };
        if mutant("runner.pollers.stop-leaves-the-other-half") && queue.is_none() {
            return None;
        }
        // Both, also if one has panicked: what is in flight uses the guest's memory and ring.
        let back = back.stop();
        queue?.join(back?)
    }
}
