//! A queue with all that it is on one thread.

use std::sync::Arc;
use std::time::Duration;

use flowstone_block::sync::atomic::{AtomicBool, Ordering};
use flowstone_block::{Channel, Completion, NextLook, Outcome, QueueContext, Request};
use flowstone_frontend::vhost_user::{Signal, Taken, VirtQueue};

use crate::batch::Batch;
use crate::counters::QueueCounters;
use crate::disk_task::{Chains, Disk, DiskTask};
use crate::intake::Intake;
use crate::kicks::Kicks;
use crate::queue_run::QueuePart;
use crate::spin::PollMode;

/// See the module.
pub type QueueTask = DiskTask<WholeQueue>;

/// A queue, and when its thread may take from it.
pub struct WholeQueue {
    kicks: Kicks,
    intake: Intake,
    queue: VirtQueue,
    /// Raised from another thread: it is to take nothing more, and to stop or to move when nothing
    /// is in flight.
    leave: Arc<AtomicBool>,
}

impl QueueTask {
    /// As [`DiskTask::with_chains`].
    pub fn new(
        queue: VirtQueue,
        channel: Box<dyn Channel>,
        context: &QueueContext,
        leave: Arc<AtomicBool>,
        counters: Arc<QueueCounters>,
        poll: PollMode,
        patience: Duration,
    ) -> Self {
        queue.refuse_kicks();
        let kicks = Kicks::new(&context.reactor, queue.avail(), Arc::clone(&counters));
        let chains = WholeQueue { kicks, intake: Intake::default(), queue, leave };
        Self::with_chains(chains, channel, context, counters, poll, patience)
    }

    /// The same, of a disk that may have a limit.
    pub fn limited(mut self, intake: Intake) -> Self {
        self.chains.intake = intake;
        self
    }
}

impl WholeQueue {
    /// Whether it takes what an earlier life left undone, and nothing else. That does not wait for
    /// a limit: it has been taken before, and a stop waits for it.
    fn takes_undone(&self) -> bool {
        self.is_leaving() || self.queue.has_undone()
    }
}

impl Chains for WholeQueue {
    fn is_leaving(&self) -> bool {
        self.leave.load(Ordering::Acquire)
    }

    /// A task that is to leave takes nothing but what an earlier life left undone: the monitor may
    /// not keep the log of that any longer. (It is no more than a queue holds in flight.)
    fn has_available(&self) -> bool {
        let wanted = !self.is_leaving() || self.queue.has_undone();
        wanted && self.queue.has_available()
    }

    fn has_undone(&self) -> bool {
        self.queue.has_undone()
    }

    fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }

    fn is_held(&self) -> bool {
        !self.takes_undone() && self.queue.has_available() && self.intake.is_closed()
    }

    fn open(&mut self) -> bool {
        if self.takes_undone() {
            return true;
        }
        let available = self.queue.available();
        self.intake.open(available, self.queue.fault().is_some())
    }

    fn close(&mut self) {
        self.intake.close(self.queue.fault().is_some());
    }

    fn take(&mut self, disk: &mut Disk, batch: &Batch) -> Taken {
        let takes_undone = self.takes_undone();
        let Self { queue, intake, leave, .. } = self;
        let submit = |request: Box<Request>| {
            intake.spend(request.op);
            disk.submit(request, batch);
        };
        let taken = if takes_undone {
            // New ones are left alone.
            queue.take_undone(submit)
        } else {
            let goes_on = || !leave.load(Ordering::Acquire) && batch.goes_on() && intake.goes_on();
            queue.take(batch.chains(), goes_on, submit)
        };
        intake.spend_answered(taken.answered);
        taken
    }

    fn handed_over(&mut self) {
        self.queue.handed_over();
    }

    fn complete(&mut self, done: Completion) -> Option<Outcome> {
        self.queue.complete(done)
    }

    fn publish(&mut self) -> Signal {
        self.queue.publish()
    }

    fn looked(&self, time: Duration) {
        self.kicks.looked(time, self.queue.avail());
    }

    fn park(&mut self) -> bool {
        if self.is_held() {
            // Notifications bring nothing more.
            return false;
        }
        // A notification from before would keep the next one from being noticed.
        self.kicks.take(self.queue.avail());
        if self.is_leaving() { self.has_available() } else { self.queue.ask_for_kicks() }
    }

    fn next_look(&mut self) -> NextLook {
        let held = !self.takes_undone() && self.queue.has_available();
        if held { self.intake.next_look() } else { NextLook::OnWake }
    }

    fn unpark(&mut self) -> bool {
        self.queue.refuse_kicks();
        // One that is held was not parked: notifications bring it nothing, and one that is not
        // taken is the last.
        !self.is_held() && self.kicks.take(self.queue.avail())
    }

    fn into_part(self) -> QueuePart {
        QueuePart::Whole(Box::new(self.queue))
    }
}
