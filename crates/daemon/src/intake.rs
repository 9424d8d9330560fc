//! When a queue may take what waits in its ring: whenever it likes, or as the limit of its disk
//! says.

use std::sync::Arc;

use flowstone_block::{Geometry, NextLook, Op, Reactor};
use flowstone_qos::{Admission, DiskLimits};

/// What the disk of a queue may use, on its way to the thread that takes the queue's requests.
#[derive(Clone)]
pub struct Throttle(pub Arc<DiskLimits>);

/// Of one queue, on the thread that takes its requests. Without a limit there is nothing to ask.
#[derive(Default)]
pub struct Intake(Option<Admission>);

impl Intake {
    /// Of a queue of a disk that may have a limit, on the thread of this reactor.
    pub fn new(throttle: Option<&Throttle>, disk: &Geometry, reactor: &Reactor) -> Self {
        let (new, zeroes) = (Admission::new, disk.zeroes_are_written);
        Self(throttle.map(|throttle| new(Arc::clone(&throttle.0), zeroes, reactor)))
    }

    /// Begins a batch, if any of so many chains may be taken. Each batch ends with
    /// [`close`](Self::close). Nothing waits in a broken ring.
    pub fn open(&mut self, available: usize, is_broken: bool) -> bool {
        let opens = self.0.as_mut().is_none_or(|admission| admission.open(available));
        if !opens {
            self.forget_if(is_broken);
        }
        opens
    }

    /// Asked before each chain: whether it may be taken, too.
    pub fn goes_on(&self) -> bool {
        self.0.as_ref().is_none_or(Admission::goes_on)
    }

    /// A request has been taken.
    pub fn spend(&self, op: Op) {
        self.0.as_ref().inspect(|admission| admission.spend(op));
    }

    /// So many chains have been taken that need no disk.
    pub fn spend_answered(&self, chains: usize) {
        self.0.as_ref().inspect(|admission| admission.spend_answered(chains));
    }

    /// Ends a batch.
    pub fn close(&mut self, is_broken: bool) {
        if let Some(admission) = &mut self.0 {
            admission.close();
        }
        self.forget_if(is_broken);
    }

    /// The ring is broken: what waits in it does not wait any more.
    fn forget_if(&mut self, is_broken: bool) {
        if let Some(admission) = self.0.as_mut().filter(|_| is_broken) {
            admission.forget();
        }
    }

    /// Whether chains that wait in the ring have to wait on.
    pub fn is_closed(&self) -> bool {
        self.0.as_ref().is_some_and(Admission::is_closed)
    }

    /// When they may be taken, as the last look before a sleep.
    pub fn next_look(&self) -> NextLook {
        self.0.as_ref().map_or(NextLook::OnWake, Admission::next_look)
    }
}

#[cfg(test)]
mod tests;
