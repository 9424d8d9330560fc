//! Which request goes next, of disks that share something.
//!
//! Start-time fair queueing (Goyal, Vin, Cheng 1996): each disk has a *tag*, the virtual time at
//! which its next request begins. The smallest tag goes first and moves on by the cost of the
//! request over the weight of the disk. A disk that had nothing to ask for begins at the virtual
//! time of what went last, so it gets its part from then on, and nothing for the time before.
//! Queues of a disk take turns, a request each.
//!
//! It knows requests as their costs. The requests themselves wait with their owners, in the same
//! order, and each owner takes as many as have been granted to its queue.

use std::collections::{BTreeSet, VecDeque};

use slab::Slab;

use crate::Weight;

/// A disk in a [`FairQueue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskKey(pub(crate) usize);

/// A queue of a disk in a [`FairQueue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueueKey(pub(crate) usize);

/// Virtual time that a cost of 1 takes at weight 1.
const SCALE: u128 = 1 << 20;

/// See the module. `T` is what is known of a request.
pub struct FairQueue<T> {
    disks: Slab<Disk>,
    queues: Slab<Queue<T>>,
    /// The tag of what has gone last; never goes back.
    virtual_time: u128,
    /// Disks that wait, by their tags.
    order: BTreeSet<Turn>,
    /// Those of them that stand apart.
    apart: BTreeSet<Turn>,
    /// The weights of disks that wait.
    waiting_weights: u64,
}

/// A tag, and whose it is: of equal ones, that with the smaller key comes first.
type Turn = (u128, usize);

struct Disk {
    weight: Weight,
    tag: u128,
    /// Its queues that have requests waiting, the next one first.
    turns: VecDeque<usize>,
    /// Whether it has to pay for what has gone already.
    owes: bool,
    /// See [`FairQueue::set_apart`].
    apart: bool,
}

impl Disk {
    fn waits(&self) -> bool {
        self.owes || !self.turns.is_empty()
    }

    /// Before something of it waits.
    fn begin_waiting(&mut self, virtual_time: u128) {
        if !self.waits() {
            self.tag = self.tag.max(virtual_time);
        }
    }

    fn tags_of(&self, cost: u64) -> u128 {
        u128::from(cost) * SCALE / u128::from(self.weight.get())
    }
}

struct Queue<T> {
    disk: usize,
    waiting: VecDeque<T>,
    granted: usize,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self {
            disks: Slab::new(),
            queues: Slab::new(),
            virtual_time: 0,
            order: BTreeSet::new(),
            apart: BTreeSet::new(),
            waiting_weights: 0,
        }
    }
}

impl<T> FairQueue<T> {
    /// A disk without queues.
    pub fn add_disk(&mut self, weight: Weight) -> DiskKey {
        let (turns, owes, apart) = Default::default();
        DiskKey(self.disks.insert(Disk { weight, tag: 0, turns, owes, apart }))
    }

    /// Changes a disk, and its place among those that wait.
    fn change<R>(&mut self, at: usize, change: impl FnOnce(&mut Disk) -> R) -> R {
        let disk = &mut self.disks[at];
        let place = |disk: &Disk| disk.waits().then_some((disk.tag, disk.apart, disk.weight));
        let before = place(disk);
        let result = change(disk);
        let after = place(disk);
        if before == after {
            return result;
        }
        if let Some((tag, apart, weight)) = before {
            self.order.remove(&(tag, at));
            if apart {
                self.apart.remove(&(tag, at));
            }
            self.waiting_weights -= u64::from(weight.get());
        }
        if let Some((tag, apart, weight)) = after {
            self.order.insert((tag, at));
            if apart {
                self.apart.insert((tag, at));
            }
            self.waiting_weights += u64::from(weight.get());
        }
        result
    }

    /// A disk whose queues are gone.
    pub fn remove_disk(&mut self, disk: DiskKey) {
        self.set_owes(disk, false);
        self.disks.remove(disk.0);
    }

    /// Changes what a disk gets from now on.
    pub fn set_weight(&mut self, disk: DiskKey, weight: Weight) {
        self.change(disk.0, |disk| disk.weight = weight);
    }

    /// Disks that stand apart are also found by [`next_apart`](Self::next_apart).
    pub fn set_apart(&mut self, disk: DiskKey, apart: bool) {
        self.change(disk.0, |disk| disk.apart = apart);
    }

    /// What a disk gets.
    pub fn weight(&self, disk: DiskKey) -> Weight {
        self.disks[disk.0].weight
    }

    /// A queue of a disk.
    pub fn add_queue(&mut self, disk: DiskKey) -> QueueKey {
        let queue = Queue { disk: disk.0, waiting: VecDeque::new(), granted: 0 };
        QueueKey(self.queues.insert(queue))
    }

    /// What waits in it is forgotten.
    pub fn remove_queue(&mut self, queue: QueueKey) {
        self.take_all(queue);
        self.queues.remove(queue.0);
    }

    /// A request waits, behind those of its queue.
    pub fn push(&mut self, queue: QueueKey, request: T) {
        let Queue { disk, waiting, .. } = &mut self.queues[queue.0];
        let was_empty = waiting.is_empty();
        waiting.push_back(request);
        if was_empty {
            let (disk, now) = (*disk, self.virtual_time);
            self.change(disk, |disk| {
                disk.begin_waiting(now);
                disk.turns.push_back(queue.0);
            });
        }
    }

    /// Says whether a disk has to pay for what has gone already: it has turns for that, and its
    /// requests wait.
    pub fn set_owes(&mut self, disk: DiskKey, owes: bool) {
        let now = self.virtual_time;
        self.change(disk.0, |disk| {
            if owes {
                disk.begin_waiting(now);
            }
            disk.owes = owes;
        });
    }

    /// The disk whose turn it is, of those that wait and may go.
    pub fn next(&self, may_go: impl Fn(DiskKey) -> bool) -> Option<DiskKey> {
        self.order.iter().map(|(_, disk)| DiskKey(*disk)).find(|disk| may_go(*disk))
    }

    /// The same of those that stand apart.
    pub fn next_apart(&self, may_go: impl Fn(DiskKey) -> bool) -> Option<DiskKey> {
        self.apart.iter().map(|(_, disk)| DiskKey(*disk)).find(|disk| may_go(*disk))
    }

    /// How much more than its part a disk has had beside another one that waits, as a cost.
    pub fn lead(&self, disk: DiskKey, other: DiskKey) -> u64 {
        let (Disk { tag, weight, .. }, other) = (&self.disks[disk.0], &self.disks[other.0]);
        let lead = tag.saturating_sub(other.tag) * u128::from(weight.get()) / SCALE;
        u64::try_from(lead).unwrap_or(u64::MAX)
    }

    /// Lets the next request of a disk go, which has one waiting. Returns its queue and what is
    /// known of it.
    ///
    /// # Panics
    /// If nothing of the disk waits.
    pub fn grant(&mut self, disk: DiskKey, cost: impl FnOnce(&T) -> u64) -> (QueueKey, T) {
        let turns = &self.disks[disk.0].turns;
        let key = *turns.front().expect("the caller has asked for a disk that waits");
        let queue = &mut self.queues[key];
        let request = queue.waiting.pop_front().expect("a queue in turn has a request");
        queue.granted += 1;
        let (waits, cost) = (!queue.waiting.is_empty(), cost(&request));
        self.virtual_time = self.virtual_time.max(self.disks[disk.0].tag);
        self.change(disk.0, |disk| {
            disk.turns.pop_front();
            if waits {
                disk.turns.push_back(key);
            }
            disk.tag += disk.tags_of(cost);
        });
        (QueueKey(key), request)
    }

    /// A disk uses its turn for so much of what it owes.
    pub fn pay(&mut self, disk: DiskKey, cost: u64) {
        // A disk that had to wait for something of its own may be behind.
        self.virtual_time = self.virtual_time.max(self.disks[disk.0].tag);
        self.change(disk.0, |disk| disk.tag += disk.tags_of(cost));
    }

    /// So much of what has been granted to a disk was not needed.
    pub fn refund(&mut self, disk: DiskKey, cost: u64) {
        self.change(disk.0, |disk| disk.tag = disk.tag.saturating_sub(disk.tags_of(cost)));
    }

    /// How many requests of a queue are known: they wait, or have been granted since they were
    /// asked for.
    pub fn known(&self, queue: QueueKey) -> usize {
        let Queue { waiting, granted, .. } = &self.queues[queue.0];
        waiting.len() + granted
    }

    /// How many requests of a queue have been granted since the last call.
    pub fn take_granted(&mut self, queue: QueueKey) -> usize {
        std::mem::take(&mut self.queues[queue.0].granted)
    }

    /// Everything that waits in a queue, which is granted nothing for it.
    pub fn take_all(&mut self, queue: QueueKey) -> VecDeque<T> {
        let Queue { disk, waiting, .. } = &mut self.queues[queue.0];
        let (disk, waiting) = (*disk, std::mem::take(waiting));
        self.change(disk, |disk| disk.turns.retain(|it| *it != queue.0));
        waiting
    }

    /// The queues of a disk.
    pub fn queues_of(&self, disk: DiskKey) -> impl Iterator<Item = QueueKey> {
        let of_disk = self.queues.iter().filter(move |(_, queue)| queue.disk == disk.0);
        of_disk.map(|(at, _)| QueueKey(at))
    }

    /// The disk of a queue.
    pub fn disk_of(&self, queue: QueueKey) -> DiskKey {
        DiskKey(self.queues[queue.0].disk)
    }

    /// The first request of a queue.
    pub fn first(&self, queue: QueueKey) -> Option<&T> {
        self.queues[queue.0].waiting.front()
    }

    /// How many requests of a queue wait.
    pub fn waiting(&self, queue: QueueKey) -> usize {
        self.queues[queue.0].waiting.len()
    }

    /// How many queues of a disk have requests that wait.
    pub fn waiting_queues(&self, disk: DiskKey) -> usize {
        self.disks[disk.0].turns.len()
    }

    /// How many requests of the disk's weight go in a round of all disks that wait, about.
    pub fn round(&self, disk: DiskKey) -> u64 {
        let weight = u64::from(self.disks[disk.0].weight.get());
        self.waiting_weights.div_ceil(weight).max(1)
    }
}

#[cfg(test)]
mod tests;
