//! Fair queueing of the requests of disks that share a resource.
//!
//! Start-time fair queueing (Goyal, Vin, Cheng 1996), on two levels: each VM has a *tag*, the
//! virtual time at which its next request begins, and so has each disk within its VM. The VM with
//! the smallest tag is next, and of its disks the one with the smallest tag; both tags advance by
//! the cost of the request divided by the weight of the VM, and of the disk. A VM or disk that
//! becomes backlogged starts at the virtual time of the last grant, so it gets its part from then
//! on, and nothing for the time before. A grant ahead of turn advances virtual time only to the tag
//! of the VM whose turn it was; otherwise a VM with a few requests, all of them granted, would
//! start again behind all that another one has gone ahead. Queues of a disk take turns, a request
//! each; queues of rank `First` precede all others of their disk, and are charged like them.
//!
//! It stores only descriptions of requests. The requests themselves wait with their owners, in the
//! same order, and each owner takes as many as have been granted to its queue.

mod level;

use std::collections::VecDeque;

use flowstone_block::mutated;
use slab::Slab;

pub use self::level::Kind;
use self::level::{Kinds, Level, Place, Share};
use crate::Weight;

/// Maximum cost that is remembered of what a VM has gone ahead of its turn.
pub const AHEAD_MOST: u64 = 256 << 10;

/// A VM in a [`FairQueue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VmKey(usize);

impl VmKey {
    /// Returns a small number, unique among the VMs of the queue.
    pub const fn place(self) -> usize {
        self.0
    }
}

/// A disk in a [`FairQueue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskKey(pub(crate) usize);

/// A queue of a disk in a [`FairQueue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueueKey(pub(crate) usize);

/// Precedence among the queues of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rank {
    /// Before all others.
    First,
    /// When no queue of rank `First` has requests.
    Usual,
}

/// A fair queue; `T` describes a request.
pub struct FairQueue<T> {
    vms: Slab<Vm>,
    disks: Slab<Disk>,
    queues: Slab<Queue<T>>,
    /// The level of the VMs.
    top: Level,
}

struct Vm {
    share: Share,
    /// The level of its disks.
    level: Level,
}

impl Vm {
    fn place(&self) -> Place {
        (self.share, self.level.kinds())
    }
}

struct Disk {
    vm: usize,
    share: Share,
    /// Its backlogged queues, by rank, the next one first.
    turns: [VecDeque<usize>; 2],
    /// Whether it has a debt to pay.
    owes: bool,
    /// See [`FairQueue::set_apart`].
    apart: bool,
}

impl Disk {
    fn waits(&self) -> bool {
        self.owes || self.turns.iter().any(|turns| !turns.is_empty())
    }

    fn place(&self) -> Place {
        if !self.waits() {
            return (self.share, Kinds::default());
        }
        let is_first = !self.turns[Rank::First as usize].is_empty();
        let kinds = Kinds::default().with(Kind::Waiting, true).with(Kind::Apart, self.apart);
        (self.share, kinds.with(Kind::First, is_first))
    }
}

struct Queue<T> {
    disk: usize,
    rank: Rank,
    waiting: VecDeque<T>,
    granted: usize,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        let (vms, disks, queues) = (Slab::new(), Slab::new(), Slab::new());
        Self { vms, disks, queues, top: Level::default() }
    }
}

impl<T> FairQueue<T> {
    /// Adds a VM without disks, with a weight of at least 1.
    pub fn add_vm(&mut self, weight: u32) -> VmKey {
        VmKey(self.vms.insert(Vm { share: Share::new(weight), level: Level::default() }))
    }

    /// Removes a VM without disks.
    pub fn remove_vm(&mut self, vm: VmKey) {
        self.vms.remove(vm.0);
    }

    /// Sets the weight of a VM.
    pub fn set_vm_weight(&mut self, vm: VmKey, weight: u32) {
        let Self { vms, top, .. } = self;
        let before = vms[vm.0].place();
        vms[vm.0].share.weight = weight;
        top.moved(vm.0, before, vms[vm.0].place());
    }

    /// Returns the weight of a VM.
    pub fn vm_weight(&self, vm: VmKey) -> u32 {
        self.vms[vm.0].share.weight
    }

    /// Returns the VM of a disk.
    pub fn vm_of(&self, disk: DiskKey) -> VmKey {
        VmKey(self.disks[disk.0].vm)
    }

    /// Adds a disk without queues.
    pub fn add_disk(&mut self, vm: VmKey, weight: Weight) -> DiskKey {
        let (turns, owes, apart) = Default::default();
        let share = Share::new(weight.get());
        DiskKey(self.disks.insert(Disk { vm: vm.0, share, turns, owes, apart }))
    }

    /// Changes a disk and the share of its VM, and updates their places in the levels.
    fn change<R>(&mut self, at: usize, change: impl FnOnce(&mut Disk, &mut Share) -> R) -> R {
        let Self { vms, disks, top, .. } = self;
        let disk = &mut disks[at];
        let vm = &mut vms[disk.vm];
        let (before, vm_before) = (disk.place(), vm.place());
        let result = change(disk, &mut vm.share);
        if before.1.is_none() && disk.waits() {
            disk.share.tag = disk.share.tag.max(vm.level.virtual_time);
        }
        vm.level.moved(at, before, disk.place());
        if vm_before.1.is_none() && !vm.level.kinds().is_none() {
            vm.share.tag = vm.share.tag.max(top.virtual_time);
        }
        top.moved(disk.vm, vm_before, vm.place());
        result
    }

    /// Charges a grant or payment of a disk at its tag, in the turn of another one or its own.
    fn charge(&mut self, at: usize, turn: DiskKey, cost: u64, change: impl FnOnce(&mut Disk)) {
        let Self { vms, disks, top, .. } = self;
        let (vm, turns_vm) = (disks[at].vm, disks[turn.0].vm);
        let turns_share = vms[turns_vm].share;
        let Vm { share, level } = &mut vms[vm];
        if vm == turns_vm {
            // Those that it passed may have been granted as much since.
            share.ahead = share.ahead.min(share.tag.saturating_sub(top.virtual_time));
        } else {
            share.goes_ahead(turns_share, AHEAD_MOST);
        }
        top.gone(*share);
        level.gone(disks[at].share);
        self.change(at, |disk, vm| {
            change(disk);
            disk.share.charge(cost);
            let charges = mutated("qos.fair.vms-go-free", true, false);
            if charges {
                vm.charge(cost);
            }
        });
    }

    /// Moves a disk to another VM, where it starts as one that was idle.
    pub fn move_disk(&mut self, disk: DiskKey, vm: VmKey) {
        let waited = self.change(disk.0, |disk, _| {
            (std::mem::take(&mut disk.turns), std::mem::take(&mut disk.owes))
        });
        self.disks[disk.0].vm = vm.0;
        self.change(disk.0, |disk, _| {
            disk.share.tag = 0;
            (disk.turns, disk.owes) = waited;
        });
    }

    /// Removes a disk without queues.
    pub fn remove_disk(&mut self, disk: DiskKey) {
        self.set_owes(disk, false);
        self.disks.remove(disk.0);
    }

    /// Sets the weight of a disk.
    pub fn set_weight(&mut self, disk: DiskKey, weight: Weight) {
        self.change(disk.0, |disk, _| disk.share.weight = weight.get());
    }

    /// Sets whether a disk is also found as [`Kind::Apart`].
    pub fn set_apart(&mut self, disk: DiskKey, apart: bool) {
        if self.disks[disk.0].apart != apart {
            self.change(disk.0, |disk, _| disk.apart = apart);
        }
    }

    /// Returns the weight of a disk within its VM.
    pub fn weight(&self, disk: DiskKey) -> u32 {
        self.disks[disk.0].share.weight
    }

    /// Adds a queue of a disk.
    pub fn add_queue(&mut self, disk: DiskKey, rank: Rank) -> QueueKey {
        let queue = Queue { disk: disk.0, rank, waiting: VecDeque::new(), granted: 0 };
        QueueKey(self.queues.insert(queue))
    }

    /// Removes a queue; its waiting requests are dropped.
    pub fn remove_queue(&mut self, queue: QueueKey) {
        self.take_all(queue);
        self.queues.remove(queue.0);
    }

    /// Appends a request to a queue.
    pub fn push(&mut self, queue: QueueKey, request: T) {
        let Queue { disk, rank, waiting, .. } = &mut self.queues[queue.0];
        waiting.push_back(request);
        if waiting.len() == 1 {
            let (disk, rank) = (*disk, *rank as usize);
            self.change(disk, |disk, _| disk.turns[rank].push_back(queue.0));
        }
    }

    /// Sets whether a disk has a debt to pay: it gets turns for that, and its requests wait.
    pub fn set_owes(&mut self, disk: DiskKey, owes: bool) {
        self.change(disk.0, |disk, _| disk.owes = owes);
    }

    /// Returns the next disk of a kind for which `may_go` holds.
    pub fn next(&self, kind: Kind, may_go: impl Fn(DiskKey) -> bool) -> Option<DiskKey> {
        let disks = self.top.turns(kind).flat_map(|vm| self.vms[vm].level.turns(kind));
        disks.map(DiskKey).find(|disk| may_go(*disk))
    }

    /// Returns the cost by which a disk's VM (or the disk, within one VM) is ahead of that of
    /// another one that waits.
    pub fn lead(&self, disk: DiskKey, other: DiskKey) -> u64 {
        let (disk, other) = (&self.disks[disk.0], &self.disks[other.0]);
        if disk.vm == other.vm {
            return disk.share.lead(other.share);
        }
        self.vms[disk.vm].share.lead(self.vms[other.vm].share)
    }

    /// Grants the next request of a disk, which must have one waiting, in the turn of another one
    /// or its own. Returns its queue and description.
    ///
    /// # Panics
    /// If the disk has no waiting request.
    pub fn grant(
        &mut self,
        disk: DiskKey,
        turn: DiskKey,
        cost: impl FnOnce(&T) -> u64,
    ) -> (QueueKey, T) {
        let mut turns = self.disks[disk.0].turns.iter().filter_map(VecDeque::front);
        let key = *turns.next().expect("the caller has asked for a disk that waits");
        let queue = &mut self.queues[key];
        let request = queue.waiting.pop_front().expect("a queue in turn has a request");
        queue.granted += 1;
        let (waits, rank) = (!queue.waiting.is_empty(), queue.rank as usize);
        self.charge(disk.0, turn, cost(&request), |disk| {
            disk.turns[rank].pop_front();
            if waits {
                disk.turns[rank].push_back(key);
            }
        });
        (QueueKey(key), request)
    }

    /// Uses the disk's turn to pay this much of its debt.
    pub fn pay(&mut self, disk: DiskKey, cost: u64) {
        // A disk that had to wait for a limit of its own may be behind.
        self.charge(disk.0, disk, cost, |_| ());
    }

    /// Returns part of the cost of a disk's grants.
    pub fn refund(&mut self, disk: DiskKey, cost: u64) {
        self.change(disk.0, |disk, vm| {
            disk.share.refund(cost);
            vm.refund(cost);
        });
    }

    /// Returns the number of a queue's requests that wait, or were granted and not taken.
    pub fn known(&self, queue: QueueKey) -> usize {
        let Queue { waiting, granted, .. } = &self.queues[queue.0];
        waiting.len() + granted
    }

    /// Returns the number of a queue's requests granted since the last call.
    pub fn take_granted(&mut self, queue: QueueKey) -> usize {
        std::mem::take(&mut self.queues[queue.0].granted)
    }

    /// Removes and returns all waiting requests of a queue.
    pub fn take_all(&mut self, queue: QueueKey) -> VecDeque<T> {
        let Queue { disk, rank, waiting, .. } = &mut self.queues[queue.0];
        let (disk, rank, waiting) = (*disk, *rank as usize, std::mem::take(waiting));
        self.change(disk, |disk, _| disk.turns[rank].retain(|it| *it != queue.0));
        waiting
    }

    /// Iterates over the queues of a disk.
    pub fn queues_of(&self, disk: DiskKey) -> impl Iterator<Item = QueueKey> {
        let of_disk = self.queues.iter().filter(move |(_, queue)| queue.disk == disk.0);
        of_disk.map(|(at, _)| QueueKey(at))
    }

    /// Returns the disk of a queue.
    pub fn disk_of(&self, queue: QueueKey) -> DiskKey {
        DiskKey(self.queues[queue.0].disk)
    }

    /// Returns the first waiting request of a queue.
    pub fn first(&self, queue: QueueKey) -> Option<&T> {
        self.queues[queue.0].waiting.front()
    }

    /// Returns the number of a queue's waiting requests.
    pub fn waiting(&self, queue: QueueKey) -> usize {
        self.queues[queue.0].waiting.len()
    }

    /// Returns the number of a disk's queues with waiting requests.
    pub fn waiting_queues(&self, disk: DiskKey) -> usize {
        self.disks[disk.0].turns.iter().map(VecDeque::len).sum()
    }

    /// Returns about how many requests are granted in a round of all waiting disks of the VM, in
    /// units of this disk's weight.
    pub fn round(&self, disk: DiskKey) -> u64 {
        let Disk { vm, share, .. } = &self.disks[disk.0];
        self.vms[*vm].level.weights().div_ceil(u64::from(share.weight)).max(1)
    }
}

#[cfg(test)]
mod tests;
