//! A whole queue on one thread.

use std::time::Duration;

use flowstone_block::{
    Channel, Completion, FrontHalf, GuestQueue, Intake, NextLook, Outcome, Request, Signal, Taken,
    Throttle,
};

use super::{Whole, split};
use crate::task::{Batch, Chains, Disk, DiskTask, Entrance, NotRun, Part, Task, TaskContext};

/// A whole queue and its entrance.
pub struct WholeChains<Q, T: Throttle> {
    entrance: Entrance<T::Intake>,
    whole: Whole<Q, T>,
}

impl<Q: GuestQueue, T: Throttle> Whole<Q, T> {
    /// Makes its task on the thread of `context`; see [`DiskTask::new`].
    pub fn task(
        self,
        channel: Box<dyn Channel>,
        context: &TaskContext<'_>,
    ) -> DiskTask<WholeChains<Q, T>> {
        let entrance = Entrance::new(self.queue.front(), &self.throttle, context);
        DiskTask::new(WholeChains { entrance, whole: self }, channel, context)
    }
}

impl<Q: GuestQueue, T: Throttle> Part for Whole<Q, T> {
    fn is_movable(&self) -> bool {
        Q::IS_MOVABLE
    }

    fn home(&self) -> Option<u32> {
        self.queue.home()
    }

    fn run(self: Box<Self>, context: &TaskContext<'_>) -> Result<Box<dyn Task>, NotRun> {
        match context.channel(self.queue.front().size()) {
            Ok(channel) => Ok(Box::new(self.task(channel, context))),
            Err(error) => Err(NotRun { error, part: Some(self) }),
        }
    }

    fn split(self: Box<Self>) -> Option<[Box<dyn Part>; 2]> {
        let (front, back) = split(*self);
        Some([Box::new(front), Box::new(back)])
    }
}

impl<Q: GuestQueue, T: Throttle> WholeChains<Q, T> {
    /// Returns whether it takes only chains that an earlier daemon left undone.
    fn takes_undone(&self) -> bool {
        self.is_leaving() || self.has_undone()
    }
}

impl<Q: GuestQueue, T: Throttle> Chains for WholeChains<Q, T> {
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

    fn into_part(self) -> Box<dyn Part> {
        Box::new(self.whole)
    }
}
