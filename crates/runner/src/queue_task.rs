//! A whole queue on one thread.

use std::time::Duration;

use flowstone_block::{
    Channel, Completion, FrontHalf, GuestQueue, Intake, NextLook, Outcome, Request, Signal, Taken,
    Throttle,
};

use crate::batch::Batch;
use crate::disk_task::{Chains, Disk, DiskTask};
use crate::entrance::Entrance;
use crate::halves::{Whole, split};
use crate::queue_run::{Made, Part, QueuePart, TaskContext};

/// The task of a whole queue.
pub type QueueTask<Q, T> = DiskTask<WholeQueue<Q, T>>;

/// A whole queue and its entrance.
pub struct WholeQueue<Q, T: Throttle> {
    entrance: Entrance<T::Intake>,
    whole: Whole<Q, T>,
}

impl<Q: GuestQueue, T: Throttle> QueueTask<Q, T> {
    /// Makes the task; see [`DiskTask::with_chains`].
    pub fn new(whole: Whole<Q, T>, channel: Box<dyn Channel>, context: &TaskContext<'_>) -> Self {
        let entrance = Entrance::new(whole.queue.front(), &whole.throttle, context);
        Self::with_chains(WholeQueue { entrance, whole }, channel, context)
    }
}

impl<Q: GuestQueue, T: Throttle> QueuePart for Whole<Q, T> {
    fn is_movable(&self) -> bool {
        Q::IS_MOVABLE
    }

    fn home(&self) -> Option<u32> {
        self.queue.home()
    }

    fn run(self: Box<Self>, context: &TaskContext<'_>) -> Made {
        match context.channel(self.queue.front().size()) {
            Ok(channel) => Ok(Box::new(QueueTask::new(*self, channel, context))),
            Err(error) => Err((self, error)),
        }
    }

    fn split(self: Box<Self>) -> Option<[Part; 2]> {
        let (front, back) = split(*self);
        Some([Box::new(front), Box::new(back)])
    }
}

impl<Q: GuestQueue, T: Throttle> WholeQueue<Q, T> {
    /// Returns whether it takes only chains that an earlier daemon left undone.
    fn takes_undone(&self) -> bool {
        self.is_leaving() || self.has_undone()
    }
}

impl<Q: GuestQueue, T: Throttle> Chains for WholeQueue<Q, T> {
    fn is_leaving(&self) -> bool {
        self.entrance.is_leaving()
    }

    /// A task that is to leave still takes chains that an earlier daemon left undone: the monitor
    /// may discard the in-flight log afterwards. (They are no more than a queue holds in flight.)
    fn has_available(&self) -> bool {
        let wanted = !self.is_leaving() || self.has_undone();
        wanted && self.whole.queue.front().has_available()
    }

    fn has_undone(&self) -> bool {
        self.whole.queue.front().has_undone()
    }

    fn in_flight(&self) -> usize {
        self.whole.queue.front().in_flight()
    }

    fn is_held(&self) -> bool {
        self.entrance.is_held(self.whole.queue.front())
    }

    fn open(&mut self) -> bool {
        self.takes_undone() || self.entrance.open(self.whole.queue.front_mut()).is_some()
    }

    fn close(&mut self) {
        self.entrance.close(self.whole.queue.front());
    }

    fn take(&mut self, disk: &mut Disk, batch: &Batch) -> Taken {
        let takes_undone = self.takes_undone();
        let Self { entrance, whole: Whole { queue, .. } } = self;
        let intake = &entrance.intake;
        let submit = |request: Box<Request>| {
            intake.spend(request.op);
            disk.submit(request, batch);
        };
        let taken = if takes_undone {
            // New chains are left alone.
            queue.take_undone(submit)
        } else {
            let goes_on = || !entrance.is_leaving() && batch.goes_on() && intake.goes_on();
            queue.take(batch.chains(), goes_on, submit)
        };
        intake.spend_answered(taken.answered);
        taken
    }

    fn handed_over(&mut self) {
        self.whole.queue.handed_over();
    }

    fn complete(&mut self, done: Completion) -> Option<Outcome> {
        self.whole.queue.complete(done)
    }

    fn publish(&mut self) -> Signal {
        self.whole.queue.publish()
    }

    fn looked(&self, time: Duration) {
        self.entrance.looked(time, self.whole.queue.front());
    }

    fn park(&mut self) -> bool {
        if self.is_held() {
            // Notifications bring nothing more.
            return false;
        }
        let front = self.whole.queue.front();
        // A notification from before would mask the next one.
        self.entrance.take_kicks(front);
        if self.is_leaving() { self.has_available() } else { front.ask_for_kicks() }
    }

    fn next_look(&mut self) -> NextLook {
        self.entrance.next_look(self.whole.queue.front())
    }

    fn unpark(&mut self) -> bool {
        self.entrance.unpark(self.whole.queue.front())
    }

    fn into_part(self) -> Part {
        Box::new(self.whole)
    }
}
