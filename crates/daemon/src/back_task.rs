//! The thread that has the disk's channel: submits what is handed over, waits for completions,
//! publishes them, and interrupts the driver.

use std::sync::Arc;
use std::time::Duration;

use flowstone_block::sync::atomic::{AtomicBool, Ordering};
use flowstone_block::{Channel, Completion, NextLook, Outcome, QueueContext, Request, mutant};
use flowstone_frontend::vhost_user::{Finished, Signal, Start, Taken, Work as Asked};

use crate::PollMode;
use crate::batch::Batch;
use crate::counters::QueueCounters;
use crate::disk_task::{Chains, Disk, DiskTask};
use crate::halves::{Back, Return};
use crate::queue_run::QueuePart;

/// See the module.
pub type BackTask = DiskTask<BackHalf>;

/// The half that completes, and how much of it the disk has.
pub struct BackHalf {
    half: Back,
    leave: Arc<AtomicBool>,
    /// Chains with the disk.
    in_flight: usize,
}

impl BackTask {
    /// As [`DiskTask::with_chains`].
    pub fn new(
        half: Back,
        channel: Box<dyn Channel>,
        context: &QueueContext,
        leave: Arc<AtomicBool>,
        counters: Arc<QueueCounters>,
        poll: PollMode,
        patience: Duration,
    ) -> Self {
        let _ = half.link.0.back.set(context.reactor.waker());
        let chains = BackHalf { half, leave, in_flight: 0 };
        Self::with_chains(chains, channel, context, counters, poll, patience)
    }
}

impl BackHalf {
    /// Submits a chain; returns whether it needs the disk.
    fn begin(&mut self, start: Start, disk: &mut Disk, batch: &Batch) -> bool {
        let Start { head, status, work } = start;
        self.half.used.begin(head, status, work.parts());
        match work {
            Asked::Submit(request) => disk.submit(request, batch),
            Asked::Ranges(parts) => parts.into_iter().for_each(|part| disk.submit(part, batch)),
            Asked::Answer(status, bytes) => {
                self.half.used.answer(head, status, bytes);
                self.give_back(head, None);
                return false;
            }
        }
        self.in_flight += 1;
        true
    }

    /// Before it is published: when the driver offers the chain again, the other thread has it.
    fn give_back(&mut self, head: u16, request: Option<Box<Request>>) {
        let done = Return { head, request, used: self.half.used.next_used() };
        if mutant("daemon.back.gives-back-after-publishing") {
            self.half.used.publish();
        }
        assert!(self.half.returns.push(done).is_ok(), "there is room for every head");
    }
}

impl Chains for BackHalf {
    fn is_leaving(&self) -> bool {
        self.leave.load(Ordering::Acquire)
    }

    fn may_rest(&self) -> bool {
        let leaves = self.is_leaving() || self.half.link.0.front_leaves();
        !leaves || mutant("daemon.back.rests-while-it-is-to-stop")
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
            taken.answered += usize::from(!self.begin(start, disk, batch));
        }
        taken.left = handed_over - taken.chains;
        taken
    }

    fn handed_over(&mut self) {
        self.half.used.handed_over();
    }

    fn complete(&mut self, done: Completion) -> Option<Outcome> {
        let Finished { head, request, outcome } = self.half.used.complete(done)?;
        self.in_flight -= 1;
        self.give_back(head, Some(request));
        Some(outcome)
    }

    fn publish(&mut self) -> Signal {
        let signal = self.half.used.publish();
        self.half.link.0.set_cleared(self.half.used.next_used());
        self.half.link.0.wake_front();
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

    fn into_part(self) -> QueuePart {
        QueuePart::Back(Box::new(self.half))
    }
}
