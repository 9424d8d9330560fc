//! The scheduler of a contended device, as pure state on a clock in nanoseconds.
//!
//! Start-time fair queueing with a bounded depth, SFQ(D) (Jin, Chase, Kaur 2004): up to D requests
//! are in flight, so that the device can reorder; when one completes, [`FairQueue`] selects the
//! next of those that wait: VMs share the device by their weights, and the disks of a VM share its
//! part by theirs. Further rules:
//!
//! * A disk with nothing in flight sends at once, without a slot, unless it is more than [`LEAD`]
//!   ahead of its part: a tag moves when a request is sent, so the disks with all slots are ahead
//!   by as much.
//! * A disk without a completion for [`STALLED_NS`] holds no slots, and sends nothing more until it
//!   has one: a hang below one file does not block other files on the same device.
//! * Requests that others in a VM wait for (journal commits and all syncs) are granted ahead of
//!   their turn, unless the VM, or the disk among those of its VM, is more than [`LEAD`] ahead of
//!   its part. They are charged like all others: a guest that declares everything a commit gains
//!   nothing in the end.
//! * A sync waits for its turn and is charged as a request without bytes, but has no slot while in
//!   flight: it may take long.
//!
//! No request is held back unless two disks are active.
//!
//! For the value of D see [`depth`].

mod depth;
mod patience;
mod state;

use std::collections::BTreeMap;

use slab::Slab;

use flowstone_block::mutated;

use self::depth::Depth;
use self::patience::Patience;
use self::state::{DiskState, EXPECTED_NS};
use crate::device::presence::Presence;
use crate::fair_queue::{AHEAD_MOST, Kind, Rank, VmKey};
use crate::{DeviceVm, DiskKey, FairQueue, QueueKey, Weight};

/// Cost of a request besides its bytes: a device takes about as long for it as for this many bytes.
const REQUEST_BYTES: u64 = 16 << 10;
/// Cost by which a disk or VM may be ahead of its part.
const LEAD: u64 = AHEAD_MOST;
/// Greatest age of a [`Census`]: what it counts changes a thousand times more slowly.
const CENSUS_NS: u64 = 200_000;
/// The same for each disk, if that is more, since a census looks at all disks; and the most.
const CENSUS_EACH_NS: u64 = 4_000;
const CENSUS_MAX_NS: u64 = EXPECTED_NS / 4;

/// The scheduler of one device.
#[derive(Default)]
pub struct Scheduler {
    fair: FairQueue<Pending>,
    disks: Slab<DiskState>,
    vms: BTreeMap<u32, Vm>,
    census: Census,
    /// Requests in flight of disks that have not stalled.
    slots: usize,
    /// Requests in flight of each VM, by its place. Places of VMs that have gone have none.
    vm_slots: Vec<usize>,
    /// Cost granted to each VM divided by its weight, see [`depth`].
    had: Vec<f64>,
    /// The VM that had least when the parts were settled last.
    last: Option<usize>,
    /// Grants before they may be settled again, except by a census.
    settle_in: usize,
    patience: Patience,
}

/// A VM with disks at the device.
struct Vm {
    key: VmKey,
    disks: usize,
}

/// Counts over all disks, refreshed at intervals, so that a grant costs no more with many disks.
#[derive(Default)]
struct Census {
    at: u64,
    /// Active disks.
    active: usize,
    /// Limits of requests in flight while disks contend.
    depth: Depth,
    /// Earliest time at which a disk may stall.
    stalls_at: u64,
    /// Whether disks have come, gone, become active, or changed their weights since.
    is_outdated: bool,
}

/// A waiting request.
#[derive(Clone, Copy)]
pub struct Pending {
    cost: u64,
    is_sync: bool,
}

impl Pending {
    /// Makes the entry of a request that moves this many bytes.
    pub const fn of_bytes(bytes: u64) -> Self {
        Self { cost: REQUEST_BYTES.saturating_add(bytes), is_sync: false }
    }

    pub const SYNC: Self = Self { cost: REQUEST_BYTES, is_sync: true };
}

impl Scheduler {
    pub fn add_disk(&mut self, vm: DeviceVm, weight: Weight) -> DiskKey {
        let vm = self.join(vm);
        let key = self.fair.add_disk(vm, weight);
        let at = self.disks.insert(DiskState::default());
        // Both slabs are filled and emptied in step, so they return equal keys.
        assert!(at == key.0, "a disk has one key");
        self.fair.set_apart(key, true);
        self.census.is_outdated = true;
        key
    }

    /// Removes a disk without queues.
    pub fn remove_disk(&mut self, disk: DiskKey) {
        let removed = self.disks.remove(disk.0);
        if !removed.is_stalled {
            self.slots -= removed.on_their_way;
        }
        let vm = self.fair.vm_of(disk);
        self.vm_slots[vm.place()] -= removed.on_their_way;
        self.fair.remove_disk(disk);
        self.leave(vm);
        self.census.is_outdated = true;
    }

    /// Adds a disk to a VM, which may be new.
    fn join(&mut self, vm: DeviceVm) -> VmKey {
        let Self { fair, vms, vm_slots, .. } = self;
        let id = mutated("qos.scheduler.all-disks-are-one-vms", vm.id, 0);
        let vm = DeviceVm { id, ..vm };
        let new = || Vm { key: fair.add_vm(vm.weight), disks: 0 };
        let known = vms.entry(vm.id).or_insert_with(new);
        known.disks += 1;
        let key = known.key;
        fair.set_vm_weight(key, vm.weight);
        vm_slots.resize(vm_slots.len().max(key.place() + 1), 0);
        key
    }

    /// Removes a disk from a VM; removes the VM with its last disk.
    fn leave(&mut self, vm: VmKey) {
        self.vms.retain(|_, known| {
            known.disks -= usize::from(known.key == vm);
            known.disks > 0
        });
        if self.vms.values().all(|known| known.key != vm) {
            self.fair.remove_vm(vm);
        }
    }

    /// Sets the VM of a disk, and the weight of the VM.
    pub fn set_vm(&mut self, disk: DiskKey, vm: DeviceVm) {
        let (before, now) = (self.fair.vm_of(disk), self.join(vm));
        if now != before {
            self.fair.move_disk(disk, now);
            let on_their_way = self.disks[disk.0].on_their_way;
            self.vm_slots[before.place()] -= on_their_way;
            self.vm_slots[now.place()] += on_their_way;
        }
        self.leave(before);
        self.census.is_outdated = true;
    }

    pub fn set_weight(&mut self, disk: DiskKey, weight: Weight) {
        self.fair.set_weight(disk, weight);
        self.census.is_outdated = true;
    }

    /// Adds a queue of a disk; queues of rank `First` precede all others of their disk.
    pub fn add_queue(&mut self, disk: DiskKey, rank: Rank) -> QueueKey {
        self.fair.add_queue(disk, rank)
    }

    pub fn remove_queue(&mut self, queue: QueueKey) {
        self.disks[self.fair.disk_of(queue).0].waiting -= self.fair.waiting(queue);
        self.fair.remove_queue(queue);
    }

    /// Records activity of a disk. Returns whether disks contend.
    pub fn touch(&mut self, disk: DiskKey, now: u64) -> bool {
        let disk = &mut self.disks[disk.0];
        disk.asked(now);
        self.census.is_outdated |= !disk.is_counted;
        self.count(now);
        self.is_contended()
    }

    const fn is_contended(&self) -> bool {
        self.census.active > 1
    }

    /// Refreshes the census if it is outdated.
    fn count(&mut self, now: u64) {
        let Census { at, stalls_at, is_outdated, .. } = self.census;
        let of_all = self.disks.len() as u64 * CENSUS_EACH_NS;
        let interval = of_all.clamp(CENSUS_NS, CENSUS_MAX_NS);
        if is_outdated || stalls_at <= now || now.saturating_sub(at) >= interval {
            self.count_now(now);
        }
    }

    fn count_now(&mut self, now: u64) {
        let mut census = Census { at: now, stalls_at: u64::MAX, ..Census::default() };
        self.slots = 0;
        for (_, disk) in &mut self.disks {
            disk.is_counted = disk.is_active(now);
            disk.is_stalled = disk.on_their_way > 0 && now >= disk.stalls_at();
            census.active += usize::from(disk.is_counted);
            if disk.on_their_way > 0 && !disk.is_stalled {
                self.slots += disk.on_their_way;
                census.stalls_at = census.stalls_at.min(disk.stalls_at());
            }
        }
        self.census = census;
        if self.is_contended() {
            self.census.depth = self.depth(now);
            self.settle_parts(now);
        } else {
            self.last = None;
        }
    }

    /// Adds a waiting request.
    pub fn push(&mut self, queue: QueueKey, request: Pending) {
        self.fair.push(queue, request);
        let disk = &mut self.disks[self.fair.disk_of(queue).0];
        disk.waiting += 1;
        if !request.is_sync {
            disk.demand.note_cost(request.cost);
        }
    }

    /// Updates a disk's demand after a batch has been pushed.
    pub fn pushed(&mut self, disk: DiskKey, now: u64) {
        let disk = &mut self.disks[disk.0];
        disk.demand.note_level(disk.waiting + disk.on_their_way, now);
    }

    /// Counts requests as in flight, also those sent without waiting.
    pub fn sent(&mut self, disk: DiskKey, requests: usize, now: u64) {
        let state = &mut self.disks[disk.0];
        state.sent(requests, now);
        if !state.is_stalled && state.on_their_way > 0 {
            self.slots += requests;
            self.census.stalls_at = self.census.stalls_at.min(state.stalls_at());
        }
        let is_apart = state.on_their_way == 0;
        self.fair.set_apart(disk, is_apart);
        self.vm_slots[self.fair.vm_of(disk).place()] += requests;
    }

    /// Counts completions.
    pub fn came_back(&mut self, disk: DiskKey, requests: usize, now: u64) {
        let state = &mut self.disks[disk.0];
        if !std::mem::replace(&mut state.is_stalled, false) {
            self.slots -= state.on_their_way;
        }
        state.came_back(requests, now);
        self.slots += state.on_their_way;
        let is_apart = state.on_their_way == 0;
        self.fair.set_apart(disk, is_apart);
        self.vm_slots[self.fair.vm_of(disk).place()] -= requests;
    }

    /// Makes all possible grants, and calls `granted` with the queue of each.
    pub fn advance(&mut self, now: u64, mut granted: impl FnMut(QueueKey)) {
        self.patience.pass(now);
        self.count(now);
        self.grant_all(now, &mut granted);
        if self.is_kept() && self.patience.is_out() {
            self.count_now(now);
            self.grant_all(now, &mut granted);
        }
        self.patience.look(self.slots > 0, self.is_kept());
    }

    /// Returns whether the device is idle, and kept for a VM although others wait.
    fn is_kept(&self) -> bool {
        let waits = || self.fair.next(Kind::Waiting, |disk| !self.disks[disk.0].is_stalled);
        self.slots == 0 && self.is_contended() && waits().is_some()
    }

    fn grant_all(&mut self, now: u64, granted: &mut impl FnMut(QueueKey)) {
        while let Some((disk, turn)) = self.next() {
            let (queue, request) = self.fair.grant(disk, turn, |request| request.cost);
            self.disks[disk.0].waiting -= 1;
            let has_slot = mutated("qos.scheduler.syncs-have-slots", !request.is_sync, true);
            if has_slot {
                self.sent(disk, 1, now);
            }
            self.count_part(disk, request.cost, now);
            granted(queue);
        }
    }

    /// Returns the disk whose request is granted next, and the one whose turn it is.
    fn next(&self) -> Option<(DiskKey, DiskKey)> {
        let Self { fair, disks, .. } = self;
        if !self.is_contended() {
            return fair.next(Kind::Waiting, |_| true).map(|disk| (disk, disk));
        }
        let is_alive = |disk: DiskKey| !disks[disk.0].is_stalled;
        let turn = fair.next(Kind::Waiting, is_alive)?;
        let is_in_time = |disk| {
            let is_in_time = fair.lead(disk, turn) <= LEAD;
            mutated("qos.scheduler.nothing-is-charged-for-going-ahead", is_in_time, true)
        };
        if self.slots < self.census.depth.all {
            let may_go = |disk| is_alive(disk) && self.has_room(disk);
            let first = |disk| may_go(disk) && is_in_time(disk);
            let first = fair.next(Kind::First, first);
            let first = mutated("qos.scheduler.commits-wait-for-their-turn", first, None);
            if let Some(disk) = first.or_else(|| fair.next(Kind::Waiting, may_go)) {
                return Some((disk, turn));
            }
        }
        // A disk with nothing in flight needs no slot.
        let apart = fair.next(Kind::Apart, |disk| is_in_time(disk) && self.is_level(disk));
        apart.map(|disk| (disk, turn))
    }

    /// Returns the number of a queue's requests granted since the last call.
    pub fn take_granted(&mut self, queue: QueueKey) -> usize {
        self.fair.take_granted(queue)
    }

    /// Returns what a disk has at the device now. While disks do not contend nothing is counted.
    pub fn presence(&self, disk: DiskKey) -> Presence {
        let DiskState { on_their_way: in_flight, waiting, .. } = self.disks[disk.0];
        let is_busy = self.is_contended() && self.slots > 0;
        let depth = if is_busy { self.census.depth.all } else { 0 };
        Presence { in_flight, waiting, depth }
    }

    /// Returns when a grant may become possible without a completion: to the queue, if it has
    /// waiting requests, or to others for which the device is idle no longer.
    pub fn next_look(&mut self, queue: QueueKey, now: u64) -> Option<u64> {
        if self.fair.first(queue).is_none() {
            // Others wait, and looked when the device was not idle yet.
            let ends_at = self.patience.ends_at();
            let ends_at = mutated("qos.patience.only-those-that-wait-look", ends_at, None);
            return ends_at;
        }
        self.count(now);
        // A VM that is ahead waits for another one, which may not send anything.
        let expected_until = match self.patience.ends_at() {
            _ if self.vms.len() <= 1 => u64::MAX,
            Some(at) => at.max(now),
            _ => now + EXPECTED_NS,
        };
        Some(self.census.stalls_at.min(expected_until)).filter(|at| *at < u64::MAX)
    }
}

#[cfg(test)]
mod tests;
