//! The line in which requests of a group's disks wait for tokens, as pure state on a clock in nanoseconds.
//!
//! A request goes when the group and its disk are out of debt and it is its turn among the disks of the
//! group and the queues of its disk ([`FairQueue`]). A disk without a group is alone in a line.

use slab::Slab;

use super::budget::{Budget, Cost};
use crate::{DiskKey, FairQueue, Limit, QueueKey, Weight};

/// Requests are let go in steps of so long, where their queue has more than one waiting: each step wakes a
/// thread.
const STEP_NS: u64 = 1_000_000;
/// No look is later than this after tokens have come: what was expected of others may not happen.
const LATE_MAX_NS: u64 = 10_000_000;

/// See the module.
#[derive(Default)]
pub struct Line {
    group: Budget,
    disks: Slab<(DiskKey, Budget)>,
    fair: FairQueue<Cost>,
}

impl Line {
    pub fn add_disk(&mut self, weight: Weight) -> DiskKey {
        let key = self.fair.add_disk(weight);
        let at = self.disks.insert((key, Budget::default()));
        // Both slabs are filled and emptied together, so they give the same places.
        assert!(at == key.0, "a disk has one key");
        key
    }

    /// A disk whose queues are gone.
    pub fn remove_disk(&mut self, disk: DiskKey) {
        self.disks.remove(disk.0);
        self.fair.remove_disk(disk);
    }

    pub fn add_queue(&mut self, disk: DiskKey) -> QueueKey {
        self.fair.add_queue(disk)
    }

    pub fn remove_queue(&mut self, queue: QueueKey) {
        self.fair.remove_queue(queue);
    }

    pub fn set_weight(&mut self, disk: DiskKey, weight: Weight) {
        self.fair.set_weight(disk, weight);
    }

    pub fn weight(&self, disk: DiskKey) -> Weight {
        self.fair.weight(disk)
    }

    pub fn set_limit(&mut self, disk: DiskKey, limit: Limit, now: u64) {
        self.disks[disk.0].1.set(limit, now);
    }

    pub fn set_group_limit(&mut self, limit: Limit, now: u64) {
        self.group.set(limit, now);
    }

    pub fn limit(&self, disk: DiskKey) -> Limit {
        self.disks[disk.0].1.limit()
    }

    pub fn group_limit(&self) -> Limit {
        self.group.limit()
    }

    /// Whether the disk has to wait for anything, ever.
    pub fn is_limited(&self, disk: DiskKey) -> bool {
        !self.limit(disk).is_none() || !self.group_limit().is_none()
    }

    /// A request waits.
    pub fn push(&mut self, queue: QueueKey, cost: Cost) {
        self.fair.push(queue, cost);
    }

    /// Lets everything go that may.
    pub fn advance(&mut self, now: u64) {
        let Self { group, disks, fair } = self;
        while group.ready_at() <= now {
            let Some(disk) = fair.next(|disk| disks[disk.0].1.ready_at() <= now) else { return };
            // Without a limit on the group, turns do not matter: a request is a request.
            let (_, cost) = fair.grant(disk, |cost| group.time_of(*cost).max(1));
            group.take(cost, now);
            disks[disk.0].1.take(cost, now);
        }
    }

    /// How many requests of a queue have been let go since the last call.
    pub fn take_granted(&mut self, queue: QueueKey) -> usize {
        self.fair.take_granted(queue)
    }

    /// Lets everything of a queue go at once. What it costs is owed.
    pub fn let_go(&mut self, queue: QueueKey, now: u64) -> usize {
        let costs = self.fair.take_all(queue);
        let disk = self.fair.disk_of(queue);
        for cost in &costs {
            self.group.take(*cost, now);
            self.disks[disk.0].1.take(*cost, now);
        }
        costs.len()
    }

    /// When the thread of a queue has to look again, if anything of it waits: when its first request will
    /// have had its turn, or later, so that several go in a step.
    pub fn next_look(&self, queue: QueueKey, now: u64) -> Option<u64> {
        let first = *self.fair.first(queue)?;
        let disk = self.fair.disk_of(queue);
        let budget = &self.disks[disk.0].1;
        let ready = self.group.ready_at().max(budget.ready_at()).max(now);
        let queues = self.fair.waiting_queues(disk) as u64;
        let others = queues * self.fair.round(disk);
        // How long one request takes of each queue before ours, and of each including ours.
        let of_disk = budget.time_of(first).saturating_mul(queues);
        let of_group = self.group.time_of(first).saturating_mul(others);
        let turn = of_disk.max(of_group);
        let own = budget.time_of(first).max(self.group.time_of(first));
        let ours = turn.saturating_sub(own);
        let rest = (self.fair.waiting(queue) as u64 - 1).saturating_mul(turn);
        let wait = ours.max(ours.saturating_add(rest).min(STEP_NS));
        Some(ready.saturating_add(wait.min(LATE_MAX_NS)))
    }
}

#[cfg(test)]
mod tests;
