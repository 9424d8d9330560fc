//! A queue that runs in one form, and the threads that only it uses.

use flowstone_block::mutant;
use flowstone_frontend::vhost_user::VirtQueue;

use crate::halves::join;
use crate::poller::{PollerThread, RunningQueue};
use crate::queue_run::QueuePart;

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
    pub parts: Parts,
    pub threads: Vec<PollerThread>,
}

/// What of a queue runs where.
pub(super) enum Parts {
    Whole(RunningQueue),
    Split { front: RunningQueue, back: RunningQueue },
}

impl Placed {
    /// Asks it to take nothing more; does not wait.
    pub fn begin_stop(&self) {
        match &self.parts {
            // The other half is needed until all has come back.
            Parts::Whole(queue) | Parts::Split { front: queue, .. } => queue.begin_stop(),
        }
    }

    /// Waits until nothing is in flight, and gives the queue back; `None` if it has panicked.
    pub fn stop(self) -> Option<Box<VirtQueue>> {
        let Self { parts, threads: _threads } = self;
        match parts {
            Parts::Whole(queue) => match queue.stop()? {
                QueuePart::Whole(queue) => Some(queue),
                _ => None,
            },
            Parts::Split { front, back } => {
                // Both, also if one has panicked: what is in flight uses the guest's memory and
                // ring.
                let front = front.stop();
                if mutant("daemon.pollers.stop-leaves-the-other-half") && front.is_none() {
                    return None;
                }
                let halves = (front, back.stop());
                match halves {
                    (Some(QueuePart::Front(front)), Some(QueuePart::Back(back))) => {
                        join(*front, *back).map(Box::new)
                    }
                    _ => None,
                }
            }
        }
    }
}
