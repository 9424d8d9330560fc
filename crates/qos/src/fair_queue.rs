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

use std::collections::VecDeque;

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
}

struct Disk {
    weight: Weight,
    tag: u128,
    /// Its queues that have requests waiting, the next one first.
    turns: VecDeque<usize>,
    /// Whether it has to pay for what has gone already.
    owes: bool,
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
        Self { disks: Slab::new(), queues: Slab::new(), virtual_time: 0 }
    }
}

impl<T> FairQueue<T> {
    /// A disk without queues.
    pub fn add_disk(&mut self, weight: Weight) -> DiskKey {
        DiskKey(self.disks.insert(Disk { weight, tag: 0, turns: VecDeque::new(), owes: false }))
    }

    /// A disk whose queues are gone.
    pub fn remove_disk(&mut self, disk: DiskKey) {
        self.disks.remove(disk.0);
    }

    /// Changes what a disk gets from now on.
    pub fn set_weight(&mut self, disk: DiskKey, weight: Weight) {
        self.disks[disk.0].weight = weight;
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
            let disk = &mut self.disks[*disk];
            disk.begin_waiting(self.virtual_time);
            disk.turns.push_back(queue.0);
        }
    }

    /// Says whether a disk has to pay for what has gone already: it has turns for that, and its
    /// requests wait.
    pub fn set_owes(&mut self, disk: DiskKey, owes: bool) {
        let disk = &mut self.disks[disk.0];
        if owes {
            disk.begin_waiting(self.virtual_time);
        }
        disk.owes = owes;
    }

    /// The disk whose turn it is, of those that wait and may go.
    pub fn next(&self, may_go: impl Fn(DiskKey) -> bool) -> Option<DiskKey> {
        let waiting = self.disks.iter().filter(|(_, disk)| disk.waits());
        let eligible = waiting.filter(|(key, _)| may_go(DiskKey(*key)));
        eligible.min_by_key(|(_, disk)| disk.tag).map(|(key, _)| DiskKey(key))
    }

    /// How much more than its part a disk has had, beside the one of `others` that waits and has
    /// had least, as a cost.
    pub fn lead(&self, disk: DiskKey, others: impl Fn(DiskKey) -> bool) -> u64 {
        let Disk { tag, weight, .. } = &self.disks[disk.0];
        let last = self.next(others).map_or(*tag, |last| self.disks[last.0].tag);
        let lead = tag.saturating_sub(last) * u128::from(weight.get()) / SCALE;
        u64::try_from(lead).unwrap_or(u64::MAX)
    }

    /// Lets the next request of a disk go, which has one waiting. Returns its queue and what is
    /// known of it.
    ///
    /// # Panics
    /// If nothing of the disk waits.
    pub fn grant(&mut self, disk: DiskKey, cost: impl FnOnce(&T) -> u64) -> (QueueKey, T) {
        let at = disk.0;
        let disk = &mut self.disks[at];
        let key = disk.turns.pop_front().expect("the caller has asked for a disk that waits");
        let queue = &mut self.queues[key];
        let request = queue.waiting.pop_front().expect("a queue in turn has a request");
        queue.granted += 1;
        if !queue.waiting.is_empty() {
            disk.turns.push_back(key);
        }
        self.pay(DiskKey(at), cost(&request));
        (QueueKey(key), request)
    }

    /// A disk uses its turn for so much of what it owes.
    pub fn pay(&mut self, disk: DiskKey, cost: u64) {
        let disk = &mut self.disks[disk.0];
        // A disk that had to wait for something of its own may be behind.
        self.virtual_time = self.virtual_time.max(disk.tag);
        disk.tag += disk.tags_of(cost);
    }

    /// So much of what has been granted to a disk was not needed.
    pub fn refund(&mut self, disk: DiskKey, cost: u64) {
        let disk = &mut self.disks[disk.0];
        disk.tag = disk.tag.saturating_sub(disk.tags_of(cost));
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
        self.disks[*disk].turns.retain(|it| *it != queue.0);
        std::mem::take(waiting)
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
        let waiting = self.disks.iter().filter(|(_, disk)| disk.waits());
        let weights: u64 = waiting.map(|(_, disk)| u64::from(disk.weight.get())).sum();
        weights.div_ceil(u64::from(self.disks[disk.0].weight.get())).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weight(weight: u32) -> Weight {
        Weight::new(weight).unwrap()
    }

    /// Disks of these weights with a queue each.
    fn disks(weights: &[u32]) -> (FairQueue<u64>, Vec<(DiskKey, QueueKey)>) {
        let mut fair = FairQueue::default();
        let add = |it: &u32| {
            let disk = fair.add_disk(weight(*it));
            (disk, fair.add_queue(disk))
        };
        let keys = weights.iter().map(add).collect();
        (fair, keys)
    }

    fn pop(fair: &mut FairQueue<u64>) -> Option<(DiskKey, QueueKey, u64)> {
        let disk = fair.next(|_| true)?;
        let before = fair.virtual_time;
        let (queue, cost) = fair.grant(disk, |cost| *cost);
        assert!(fair.virtual_time >= before, "virtual time went back");
        Some((disk, queue, cost))
    }

    #[test]
    fn disks_that_always_wait_get_costs_by_their_weights() {
        let weights = [100, 100, 300, 50];
        let (mut fair, keys) = disks(&weights);
        let mut random = fastrand::Rng::with_seed(7);
        let mut got = [0; 4];
        for (_, queue) in &keys {
            fair.push(*queue, random.u64(1..100));
        }
        for _ in 0..100_000 {
            let (disk, queue, cost) = pop(&mut fair).unwrap();
            got[disk.0] += cost;
            fair.push(queue, random.u64(1..100));
        }
        let per_weight = [0, 1, 2, 3].map(|at: usize| got[at] as f64 / f64::from(weights[at]));
        let mean = per_weight.iter().sum::<f64>() / 4.0;
        for (at, share) in per_weight.iter().enumerate() {
            assert!((share / mean - 1.0).abs() < 0.001, "disk {at}: {per_weight:?}");
        }
    }

    /// However much another one has waiting, and however much that costs.
    #[test]
    fn a_disk_that_asks_now_and_then_waits_for_one_request_at_most() {
        let (mut fair, keys) = disks(&[100, 100]);
        let ((_, hog), (modest, queue)) = (keys[0], keys[1]);
        (0..1000).for_each(|_| fair.push(hog, 1 << 20));
        for round in 0..400 {
            pop(&mut fair).unwrap();
            fair.push(queue, 1);
            let turn = (0..3).position(|_| pop(&mut fair).unwrap().0 == modest);
            assert!(turn.is_some_and(|turn| turn <= 1), "round {round}: {turn:?}");
        }
    }

    #[test]
    fn a_disk_that_was_idle_gets_nothing_for_that_time() {
        let (mut fair, keys) = disks(&[100, 100]);
        (0..1000).for_each(|_| fair.push(keys[0].1, 10));
        (0..500).for_each(|_| assert!(pop(&mut fair).is_some()));
        (0..500).for_each(|_| fair.push(keys[1].1, 10));
        let late = (0..100).filter(|_| pop(&mut fair).unwrap().0 == keys[1].0).count();
        assert!((49..=51).contains(&late), "{late} of 100");
    }

    #[test]
    fn queues_of_a_disk_take_turns_and_keep_their_order() {
        let mut fair = FairQueue::default();
        let disk = fair.add_disk(Weight::default());
        let queues = [0, 1, 2].map(|_| fair.add_queue(disk));
        // The first one is deep, the others are not.
        for (at, queue) in [(0, 5), (1, 1), (2, 2)] {
            (0..queue).for_each(|nth| fair.push(queues[at], at as u64 * 10 + nth));
        }
        let order: Vec<u64> = std::iter::from_fn(|| pop(&mut fair).map(|it| it.2)).collect();
        assert_eq!(order, [0, 10, 20, 1, 21, 2, 3, 4]);
        assert_eq!(queues.map(|queue| fair.take_granted(queue)), [5, 1, 2]);
        assert_eq!(queues.map(|queue| fair.take_granted(queue)), [0; 3]);
    }

    /// With disks that come and go, that may not go at times, and whose weights change.
    #[test]
    fn virtual_time_never_goes_back_and_nothing_waits_for_ever() {
        let mut random = fastrand::Rng::with_seed(3);
        let (mut fair, keys) = disks(&[1, 100, 10_000, 7]);
        let mut waiting = [0u64; 4];
        let mut passed_by = [0; 4];
        for _ in 0..100_000 {
            let at = random.usize(0..4);
            if random.u8(0..3) > 0 && waiting[at] < 8 {
                fair.push(keys[at].1, random.u64(1..1 << 20));
                waiting[at] += 1;
            }
            if random.u8(0..200) == 0 {
                fair.set_weight(keys[at].0, weight(random.u32(1..=Weight::MAX)));
            }
            let blocked = random.usize(0..8);
            let Some(disk) = fair.next(|disk| disk.0 != blocked) else { continue };
            let before = fair.virtual_time;
            fair.grant(disk, |cost| *cost);
            assert!(fair.virtual_time >= before);
            waiting[disk.0] -= 1;
            for (other, passed) in passed_by.iter_mut().enumerate() {
                *passed = if other == disk.0 || waiting[other] == 0 { 0 } else { *passed + 1 };
                assert!(*passed < 50_000, "disk {other} starves");
            }
        }
        for (_, queue) in keys {
            assert_eq!(fair.take_all(queue).len() as u64, waiting[fair.disk_of(queue).0]);
            fair.remove_queue(queue);
        }
        assert!(fair.next(|_| true).is_none());
    }
}
