//! The back half of a split queue: submits the requests handed over by the front half, reaps and
//! publishes completions, and interrupts the driver.

use std::sync::Arc;

use flowstone_block::sync::atomic::{AtomicBool, Ordering};
use flowstone_block::{
    BackHalf, Channel, Completion, Finished, GuestQueue, NextLook, Outcome, Request, Signal, Taken,
    mutated,
};

use super::{Back, Return};
use crate::task::{Batch, Chains, Disk, DiskTask, NotRun, Part, Task, TaskContext};

/// The back half of a queue, and the number of its chains in flight.
pub struct BackChains<Q: GuestQueue> {
    half: Back<Q>,
    leave: Arc<AtomicBool>,
    /// Chains submitted to the disk and not completed.
    in_flight: usize,
}

impl<Q: GuestQueue> Back<Q> {
    /// Makes its task on the thread of `context`; see [`DiskTask::new`].
    pub fn task(
        self,
        channel: Box<dyn Channel>,
        context: &TaskContext<'_>,
    ) -> DiskTask<BackChains<Q>> {
        let _ = self.link.0.back.set(context.reactor.waker());
        let chains = BackChains { half: self, leave: Arc::clone(&context.leave), in_flight: 0 };
        DiskTask::new(chains, channel, context)
    }
}

impl<Q: GuestQueue> Part for Back<Q> {
    fn run(self: Box<Self>, context: &TaskContext<'_>) -> Result<Box<dyn Task>, NotRun> {
        match context.channel(self.size) {
            Ok(channel) => Ok(Box::new(self.task(channel, context))),
            Err(error) => Err(NotRun { error, part: Some(self) }),
        }
    }
}

impl<Q: GuestQueue> BackChains<Q> {
    /// Returns a chain to the front half. Called before the chain is published: once the driver can
    /// see the completion it may offer the chain again to the front half.
    fn give_back(&mut self, head: u16, request: Option<Box<Request>>) {
        let Back { back, returns, .. } = &mut self.half;
        let done = Return { head, request, done: back.done() };
        let publishes_first = mutated("runner.back.gives-back-after-publishing", false, true);
        if publishes_first {
            back.publish();
        }
        assert!(returns.push(done).is_ok(), "there is room for every head");
    }
}

impl<Q: GuestQueue> Chains for BackChains<Q> {
    fn is_leaving(&self) -> bool {
        self.leave.load(Ordering::Acquire)
    }

    fn may_rest(&self) -> bool {
        let leaves = self.is_leaving() || self.half.link.0.front_leaves();
        mutated("runner.back.rests-while-it-is-to-stop", !leaves, true)
    }

    fn has_available(&self) -> bool {
        !self.half.starts.is_empty()
    }

    fn has_undone(&self) -> bool {
        self.has_available()
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn take(&mut self, disk: &mut Disk, batch: &Batch) -> Taken {
        let handed_over = self.half.starts.slots();
        let mut taken = Taken::default();
        while taken.chains < batch.chains().min(handed_over) && batch.goes_on() {
            let Ok(start) = self.half.starts.pop() else { break };
            taken.chains += 1;
            self.half.back.take_up(&start);
            match self.half.back.begin(start, |request| disk.submit(request, batch)) {
                Some(head) => {
                    taken.answered += 1;
                    self.give_back(head, None);
                }
                None => self.in_flight += 1,
            }
        }
        taken.left = handed_over - taken.chains;
        taken
    }

    fn handed_over(&mut self) {
        self.half.back.handed_over();
    }

    fn complete(&mut self, done: Completion) -> Option<Outcome> {
        let Finished { head, request, outcome } = self.half.back.complete(done)?;
        self.in_flight -= 1;
        self.give_back(head, Some(request));
        Some(outcome)
    }

    fn publish(&mut self) -> Signal {
        let Back { back, link, .. } = &mut self.half;
        let signal = back.publish();
        link.0.set_cleared(back.done());
        link.0.wake_front();
        signal
    }

    fn park(&mut self) -> bool {
        self.has_available()
    }

    fn next_look(&mut self) -> NextLook {
        NextLook::now_if(self.has_available())
    }

    fn unpark(&mut self) -> bool {
        self.has_available()
    }

    fn into_part(self) -> Box<dyn Part> {
        Box::new(self.half)
    }
}
