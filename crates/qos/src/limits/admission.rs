//! Admission of requests of a limited disk from a queue's ring. Requests over the limit stay in the
//! ring, so a stopped queue never holds requests that wait for its limit, whoever stops it and
//! however often.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;

use flowstone_block::{Geometry, Intake, NextLook, Op, Reactor, Throttle, mutated};

use super::budget::Cost;
use super::disk::DiskLimits;
use super::gate::QueueGate;
use super::line::Lease;

/// The admission of one queue, on its thread. While nothing is limited, a batch costs one read of a
/// flag.
pub struct Admission {
    disk: Arc<DiskLimits>,
    gate: Arc<QueueGate>,
    zeroes_are_written: bool,
    /// Lease of the current batch; `None` if it is not limited.
    lease: Option<Lease>,
    /// Chains and cost taken by the current batch.
    chains: Cell<usize>,
    spent: Cell<Cost>,
    /// Waiting chains, by the time when they were first seen, on the clock of the line.
    waiting: VecDeque<(u64, usize)>,
    /// Time of the lease, on that clock.
    leased_at: u64,
    /// Time before which nothing may be taken, on that clock.
    look_at: Option<u64>,
    /// Number of the limit changes seen.
    seen: u64,
}

/// Returns a request's cost to a limit; a flush costs nothing. Zeroes cost bytes if they have to be
/// written.
fn cost(op: Op, zeroes_are_written: bool) -> Cost {
    match op {
        Op::WriteZeroes { extent, .. } if zeroes_are_written => {
            Cost { requests: 1, bytes: extent.bytes() }
        }
        Op::Read(extent) | Op::Write(extent) => Cost { requests: 1, bytes: extent.bytes() },
        Op::Discard(_) | Op::WriteZeroes { .. } => Cost { requests: 1, bytes: 0 },
        Op::Flush => Cost::default(),
    }
}

impl Admission {
    fn look(&mut self, available: usize) {
        let group = &self.disk.group;
        let now = group.now();
        self.note_waiting(available, now);
        let group = &self.disk.group;
        // Read before the line is asked: later changes are seen at the next look.
        self.seen = group.changes();
        let mut state = group.lock();
        let lease = state.line.look(self.gate.queue, available, now);
        self.look_at = state.line.next_look(self.gate.queue, now);
        drop(state);
        (self.lease, self.leased_at) = (Some(lease), now);
    }

    fn note_waiting(&mut self, available: usize, now: u64) {
        let known: usize = self.waiting.iter().map(|(_, chains)| chains).sum();
        if available < known {
            self.waiting.clear();
        }
        let new = available.saturating_sub(known);
        if new > 0 {
            self.waiting.push_back((now, new));
        }
    }

    fn add(&self, cost: Cost) {
        if self.gate.is_limited() {
            self.spent.set(self.spent.get().plus(cost));
        }
    }

    fn count_waits(&mut self, mut chains: usize) {
        let (mut late, mut late_ns) = (0, 0);
        while let Some((since, waiting)) = self.waiting.front_mut().filter(|_| chains > 0) {
            let taken = chains.min(*waiting) as u64;
            if *since < self.leased_at {
                late += taken;
                late_ns += taken * (self.leased_at - *since);
            }
            chains -= taken as usize;
            *waiting -= taken as usize;
            if *waiting == 0 {
                self.waiting.pop_front();
            }
        }
        if late > 0 {
            self.disk.count_throttled(late, late_ns);
        }
    }
}

impl Throttle for DiskLimits {
    type Intake = Admission;

    fn intake(self: Arc<Self>, disk: &Geometry, reactor: &Reactor) -> Admission {
        let gate = self.open_gate(reactor);
        let (lease, chains, spent, waiting, leased_at, look_at) = Default::default();
        let (seen, zeroes_are_written) = (self.group.changes(), disk.zeroes_are_written);
        Admission {
            disk: self,
            gate,
            zeroes_are_written,
            lease,
            chains,
            spent,
            waiting,
            leased_at,
            look_at,
            seen,
        }
    }
}

impl Intake for Admission {
    fn open(&mut self, available: usize) -> bool {
        if !self.gate.is_limited() && self.waiting.is_empty() {
            return true;
        }
        if self.is_closed() {
            return false;
        }
        self.look(available);
        self.lease.is_some_and(|lease| lease.chains > 0)
    }

    fn forget(&mut self) {
        if !self.waiting.is_empty() {
            self.look(0);
            (self.lease, self.look_at) = (None, None);
        }
    }

    #[inline]
    fn goes_on(&self) -> bool {
        let Some(Lease { chains, cost, counts_bytes }) = self.lease else { return true };
        let spent = self.spent.get();
        let is_spent = self.chains.get() >= chains
            || spent.requests >= cost.requests
            || counts_bytes && spent.bytes >= cost.bytes;
        let is_spent = mutated("qos.admission.takes-all-that-waits", is_spent, false);
        if !is_spent {
            self.chains.set(self.chains.get() + 1);
            return true;
        }
        false
    }

    #[inline]
    fn spend(&self, op: Op) {
        self.add(cost(op, self.zeroes_are_written));
    }

    #[inline]
    fn spend_answered(&self, chains: usize) {
        self.add(Cost { requests: chains as u64, bytes: 0 });
    }

    fn close(&mut self) {
        let (chains, spent) = (self.chains.take(), self.spent.take());
        let lease = self.lease.take().unwrap_or_default();
        self.count_waits(chains);
        if lease.cost == spent && lease.chains == chains {
            return;
        }
        let group = &self.disk.group;
        group.lock().line.settle(self.gate.queue, lease, chains, spent, group.now());
        // The rest of the lease has to be requested again.
        self.look_at = None;
    }

    fn is_closed(&self) -> bool {
        let group = &self.disk.group;
        self.look_at.is_some_and(|at| group.now() < at) && group.changes() == self.seen
    }

    fn next_look(&self) -> NextLook {
        let Some(at) = self.look_at else { return NextLook::OnWake };
        let is_news = self.disk.group.changes() != self.seen;
        if is_news { NextLook::Now } else { NextLook::At(self.disk.group.instant(at)) }
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.disk.close_gate(&self.gate);
    }
}

#[cfg(test)]
mod tests;
