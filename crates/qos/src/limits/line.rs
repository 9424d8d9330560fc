//! The line in which the disks of a group wait for tokens, as pure state on a clock in nanoseconds.
//!
//! Chains wait in their rings; the line knows their number. One may be taken when the group and its
//! disk are out of debt and it is its turn among the disks of the group and the queues of its disk
//! ([`FairQueue`]). Its cost is known only after it has been taken: until then the recent mean of
//! its queue is assumed.
//!
//! The excess of the real cost is a debt of its disk, to the disk's budget and to the group. It is
//! paid to the group in pieces, each in a turn of the disk, whose requests wait meanwhile: requests
//! of other disks wait for one piece at most. Debts stay with the disk when its queues go. A disk
//! without a group is alone in a line.

use flowstone_block::mutated;
use slab::Slab;

use super::budget::{Budget, Cost};
use crate::fair_queue::{Kind, Rank, VmKey};
use crate::{DiskKey, FairQueue, Limit, QueueKey, Weight};

/// Interval at which requests are granted to a queue with more than one waiting: each step wakes a
/// thread.
const STEP_NS: u64 = 1_000_000;
/// Greatest delay of a look after tokens have come: expected requests of others may not come.
const LATE_MAX_NS: u64 = 10_000_000;
/// Piece in which a group's debt is paid, in time at its rate: the credit that every limit has.
const PIECE_NS: u64 = 10_000_000;
/// Debt above which a disk loses its grants, in time.
const LONG_NS: u64 = 10 * LATE_MAX_NS;
/// Chains of a queue known at a time, however many wait in its ring: each is stored, and visited
/// under the lock of the group, on the thread of any of its disks.
const KNOWN_MAX: usize = 1024;
/// Assumed size of a queue's first request.
const FIRST_BYTES: u64 = 4096;

/// The disks of a group, waiting for tokens.
pub struct Line {
    group: Budget,
    /// All disks are in one VM here: they share the group by their own weights.
    vm: VmKey,
    disks: Slab<Disk>,
    queues: Slab<Queue>,
    fair: FairQueue<Cost>,
}

#[derive(Default)]
struct Disk {
    budget: Budget,
    /// Debt to the group. Nothing more is granted to the disk before it is paid.
    owed: Cost,
}

struct Queue {
    /// Recent mean per chain.
    mean_bytes: u64,
    /// Assumed cost of the chains granted and not taken.
    granted: Cost,
}

/// Chains that a queue may take now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lease {
    pub chains: usize,
    /// Their assumed cost, which has been charged.
    pub cost: Cost,
    /// Whether bytes are limited.
    pub counts_bytes: bool,
}

impl Default for Line {
    fn default() -> Self {
        let mut fair = FairQueue::default();
        let vm = fair.add_vm(1);
        Self { group: Budget::default(), vm, disks: Slab::new(), queues: Slab::new(), fair }
    }
}

impl Line {
    pub fn add_disk(&mut self, weight: Weight) -> DiskKey {
        let key = self.fair.add_disk(self.vm, weight);
        let at = self.disks.insert(Disk::default());
        // Both slabs are filled and emptied in step, so they return equal keys.
        assert!(at == key.0, "a disk has one key");
        key
    }

    /// Removes a disk without queues.
    pub fn remove_disk(&mut self, disk: DiskKey) {
        self.disks.remove(disk.0);
        self.fair.remove_disk(disk);
    }

    pub fn add_queue(&mut self, disk: DiskKey) -> QueueKey {
        let key = self.fair.add_queue(disk, Rank::Usual);
        let queue = Queue { mean_bytes: FIRST_BYTES, granted: Cost::default() };
        assert!(self.queues.insert(queue) == key.0, "a queue has one key");
        key
    }

    /// Removes a queue; its unused grants are returned.
    pub fn remove_queue(&mut self, queue: QueueKey) {
        self.revoke(queue);
        self.queues.remove(queue.0);
        self.fair.remove_queue(queue);
    }

    pub fn set_weight(&mut self, disk: DiskKey, weight: Weight) {
        self.fair.set_weight(disk, weight);
    }

    pub fn weight(&self, disk: DiskKey) -> u32 {
        self.fair.weight(disk)
    }

    pub fn set_limit(&mut self, disk: DiskKey, limit: Limit, now: u64) {
        self.disks[disk.0].budget.set(limit, now);
    }

    /// Sets the group's limit; debts to what is no longer limited are dropped.
    pub fn set_group_limit(&mut self, limit: Limit, now: u64) {
        self.group.set(limit, now);
        for (at, disk) in &mut self.disks {
            disk.owed = self.group.counted(disk.owed);
            self.fair.set_owes(DiskKey(at), !disk.owed.is_zero());
        }
    }

    pub fn limit(&self, disk: DiskKey) -> Limit {
        self.disks[disk.0].budget.limit()
    }

    pub fn group_limit(&self) -> Limit {
        self.group.limit()
    }

    /// Returns whether the disk ever has to wait for tokens.
    pub fn is_limited(&self, disk: DiskKey) -> bool {
        !self.limit(disk).is_none() || !self.group_limit().is_none()
    }

    /// Updates the number of chains that wait in a queue's ring. Returns how many it may take.
    pub fn look(&mut self, queue: QueueKey, available: usize, now: u64) -> Lease {
        self.announce(queue, available);
        self.advance(now);
        let chains = self.fair.take_granted(queue);
        let cost = std::mem::take(&mut self.queues[queue.0].granted);
        let disk = &self.disks[self.fair.disk_of(queue).0];
        let counts_bytes = disk.budget.counts_bytes() || self.group.counts_bytes();
        Lease { chains, cost, counts_bytes }
    }

    fn announce(&mut self, queue: QueueKey, available: usize) {
        let known = available.min(KNOWN_MAX);
        let available = mutated("qos.line.knows-all-that-waits", known, available);
        if available < self.fair.known(queue) {
            // The guest has broken the ring.
            self.revoke(queue);
            self.fair.take_all(queue);
        }
        let mean = self.queues[queue.0].mean_bytes;
        let assumed = Cost { requests: 1, bytes: mean.min(self.group.in_time(PIECE_NS).bytes) };
        (self.fair.known(queue)..available).for_each(|_| self.fair.push(queue, assumed));
    }

    /// Makes all possible grants.
    fn advance(&mut self, now: u64) {
        let Self { group, disks, queues, fair, vm: _ } = self;
        loop {
            let at = group.ready_at();
            let may_go = |disk: &Disk| !disk.owed.is_zero() || disk.budget.ready_at() <= now;
            let next = fair.next(Kind::Waiting, |disk| may_go(&disks[disk.0]));
            let Some(key) = next.filter(|_| at <= now) else { return };
            // Unused tokens are no credit while there is a debt.
            let owes = disks.iter().any(|(_, disk)| !disk.owed.is_zero());
            let Disk { budget, owed } = &mut disks[key.0];
            if owed.is_zero() {
                // Without a limit on the group, the cost does not matter for turns: each request
                // counts 1.
                let (queue, cost) = fair.grant(key, key, |cost| group.time_of(*cost).max(1));
                group.take(cost, if owes { at } else { now });
                budget.take(cost, now);
                let granted = &mut queues[queue.0].granted;
                *granted = granted.plus(cost);
                continue;
            }
            // For tokens that came since the last look, before anything waited, few steps are used.
            let left = owed.beyond(group.in_time(PIECE_NS.max((now - at) / 8)));
            let piece = owed.beyond(left);
            fair.pay(key, group.time_of(piece).max(1));
            group.take(piece, at);
            *owed = left;
            fair.set_owes(key, !left.is_zero());
        }
    }

    /// Ends a lease: `chains` chains were taken, at a cost of `spent`.
    pub fn settle(&mut self, queue: QueueKey, lease: Lease, chains: usize, spent: Cost, now: u64) {
        let key = self.fair.disk_of(queue);
        let of_queue = &mut self.queues[queue.0];
        if let Some(mean) = spent.bytes.checked_div(chains as u64) {
            of_queue.mean_bytes = nearer(of_queue.mean_bytes, mean);
        }
        self.refund(key, lease.cost.beyond(spent));
        self.owe(key, spent.beyond(lease.cost), now);
    }

    /// Charges a disk for an excess over what was granted.
    pub fn owe(&mut self, key: DiskKey, excess: Cost, now: u64) {
        let disk = &mut self.disks[key.0];
        let charges = mutated("qos.line.forgets-what-was-not-assumed", true, false);
        if charges {
            disk.budget.take(excess, now);
            disk.owed = disk.owed.plus(self.group.counted(excess));
        }
        let owes = mutated("qos.line.group-pays-for-a-disk", true, false);
        if !owes {
            self.group.take(std::mem::take(&mut disk.owed), now);
        }
        self.fair.set_owes(key, !disk.owed.is_zero());
        let owes_ns = disk.budget.ready_at().saturating_sub(now).max(self.group.time_of(disk.owed));
        let is_long = mutated("qos.line.grants-outlive-a-debt", owes_ns > LONG_NS, false);
        if is_long {
            // Its other queues may have as large requests, which is not assumed. They look again
            // before the debt is paid.
            let queues: Vec<QueueKey> = self.fair.queues_of(key).collect();
            queues.into_iter().for_each(|queue| self.revoke(queue));
        }
    }

    /// Returns the time in which a cost comes in for a disk, in nanoseconds.
    pub fn time_of(&self, disk: DiskKey, cost: Cost) -> u64 {
        self.disks[disk.0].budget.time_of(cost).max(self.group.time_of(cost))
    }

    /// Withdraws a queue's grants that it has not taken.
    fn revoke(&mut self, queue: QueueKey) {
        self.fair.take_granted(queue);
        let granted = std::mem::take(&mut self.queues[queue.0].granted);
        self.refund(self.fair.disk_of(queue), granted);
    }

    fn refund(&mut self, disk: DiskKey, cost: Cost) {
        self.group.give(cost);
        self.disks[disk.0].budget.give(cost);
        self.fair.refund(disk, self.group.time_of(cost));
    }

    /// Returns when the thread of a queue has to look again, if it has chains waiting: at the
    /// expected turn of its first request, or later, so that several are granted in a step.
    pub fn next_look(&self, queue: QueueKey, now: u64) -> Option<u64> {
        let first = *self.fair.first(queue)?;
        let disk = self.fair.disk_of(queue);
        let Disk { budget, owed } = &self.disks[disk.0];
        let ready = self.group.ready_at().max(budget.ready_at()).max(now);
        let queues = self.fair.waiting_queues(disk) as u64;
        let others = queues * self.fair.round(disk);
        // Time of one request of each queue before this one, and of each including this one.
        let of_disk = budget.time_of(first).saturating_mul(queues);
        let of_group = self.group.time_of(first.plus(*owed)).saturating_mul(others);
        let turn = of_disk.max(of_group);
        let own = budget.time_of(first).max(self.group.time_of(first));
        let ours = turn.saturating_sub(own);
        let rest = (self.fair.waiting(queue) as u64 - 1).saturating_mul(turn);
        let wait = ours.max(ours.saturating_add(rest).min(STEP_NS));
        Some(ready.saturating_add(wait.min(LATE_MAX_NS)))
    }
}

/// Returns a moving average with weight 1/4 for the newest value; exact when values are all equal.
const fn nearer(mean: u64, value: u64) -> u64 {
    if value > mean { mean + (value - mean).div_ceil(4) } else { mean - (mean - value).div_ceil(4) }
}

#[cfg(test)]
mod tests;
