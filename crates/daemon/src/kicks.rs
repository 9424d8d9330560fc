//! The driver's notifications, as the task that takes its requests hears of them.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use flowstone_block::Reactor;
use flowstone_frontend::vhost_user::AvailHalf;
use flowstone_reactor::Watch;

use crate::counters::QueueCounters;
use crate::histogram::add;

/// A task that does not sleep counts notifications after so much time of looking for work: they
/// cost a system call.
const COUNTED_AFTER: Duration = Duration::from_millis(100);

/// See the module.
pub struct Kicks {
    watch: Watch,
    counters: Arc<QueueCounters>,
    looked: Cell<Duration>,
}

impl Kicks {
    /// Of a queue, on the thread of this reactor.
    pub fn new(reactor: &Reactor, queue: &AvailHalf, counters: Arc<QueueCounters>) -> Self {
        let watch = Watch::new(reactor, Arc::clone(queue.kick()));
        Self { watch, counters, looked: Cell::default() }
    }

    /// Forgets the notifications that ended a sleep, or came before one. Returns whether there were
    /// any.
    pub fn take(&self, queue: &AvailHalf) -> bool {
        let rung = self.watch.take_ready();
        if rung {
            self.count(queue);
        }
        rung
    }

    /// Its thread has looked for work that long.
    pub fn looked(&self, time: Duration, queue: &AvailHalf) {
        self.looked.set(self.looked.get() + time);
        if self.looked.get() >= COUNTED_AFTER {
            self.looked.set(Duration::ZERO);
            self.count(queue);
        }
    }

    fn count(&self, queue: &AvailHalf) {
        add(&self.counters.kicks, queue.clear_kicks());
    }
}
