//! The number of requests in flight at a contended device, as far as weights allow.
//!
//! Shares follow the weights as long as each disk has requests waiting. So the depth is the demand
//! of the disk that wants least for its weight, plus as much for each other disk in proportion to
//! its weight, slightly reduced. A disk's weight here is its fraction of all: that of its VM,
//! divided among the active disks of the VM by their own weights.
//!
//! It is at least four for the heaviest disk, fewer for lighter ones, as far as they want that:
//! sixteen disks with some requests each must be able to use the device, although one hardly sends
//! any. And for one disk that wants them it is [`DEPTH_LEAST`], less for a lighter disk than the
//! heaviest, in proportion: the next request of a heavy disk queues behind those in flight.
//!
//! A VM has at most its part of that depth while another VM, which has just had completions, is
//! expected to send again: completions come in batches, and a light VM would otherwise take the
//! slots that a heavy VM's batch frees, before the heavy one's guest has seen it. Nor may a VM get
//! ahead of such a VM by more than a [`LEAD`](super::LEAD) of the lightest one, counted from the
//! time when both wanted more than there is: tags do not record what a VM has missed while it had
//! nothing waiting.

use flowstone_block::mutated;

use super::state::DiskState;
use super::{LEAD, Scheduler};
use crate::DiskKey;

/// Depth for a single disk, if it is as heavy as any.
pub const DEPTH_LEAST: usize = 16;
/// Depth for a single disk of negligible weight: with fewer requests a device cannot reorder.
const DEPTH_LIGHT: f64 = 2.0;
/// Depth for each of the heaviest disks, if they want it.
const DEPTH_EACH: f64 = 4.0;
/// Fraction of the depth at which the disk that wants least would have nothing waiting.
const BACKLOGGED: f64 = 7.0 / 8.0;

/// Fraction of the permitted lead after which the VM that had least may no longer have least.
const CAUGHT_UP: f64 = 0.25;

/// The parts are settled at most once for as many grants as a quarter of the VMs: settling looks at
/// all disks.
const SETTLED_EACH: usize = 4;

/// Weight and demand of an active disk.
struct Active {
    vm: usize,
    weight: f64,
    requests: f64,
    cost: f64,
}

/// Limits of requests in flight.
#[derive(Default)]
pub struct Depth {
    /// For all disks.
    pub all: usize,
    /// For each VM, by its place; VMs without an entry have no limit of their own.
    pub of_vms: Vec<usize>,
    /// Greatest difference of cost per weight by which a VM may be ahead of another.
    pub lead: f64,
}

impl Scheduler {
    /// Computes the limits.
    pub(super) fn depth(&self, now: u64) -> Depth {
        let active = self.active();
        let heaviest = active.iter().map(|disk| disk.weight).fold(0.0, f64::max);
        let per_weight = |disk: &Active| disk.requests * disk.cost / disk.weight;
        let least = active.iter().map(per_weight).fold(f64::MAX, f64::min);
        let (mut fair, mut each, mut one) = (0.0, 0.0, DEPTH_LIGHT);
        let (mut of_vms, mut weights) =
            (vec![0.0; self.vm_slots.len()], vec![0.0; self.vm_slots.len()]);
        for Active { vm, weight, requests, cost } in active {
            weights[vm] += weight;
            let own = BACKLOGGED * least * weight / cost.max(1.0);
            fair += own;
            of_vms[vm] += own;
            each += requests.min(DEPTH_EACH * weight / heaviest);
            // A disk without a known demand may want anything.
            let wanted = if requests > 0.0 { requests } else { f64::MAX };
            let part = mutated("qos.depth.a-floor-for-light-disks", weight / heaviest, 1.0);
            one = wanted.min(DEPTH_LEAST as f64 * part).max(one);
        }
        let lightest = weights.into_iter().filter(|it| *it > 0.0).fold(f64::MAX, f64::min);
        let floor = (one as usize).max(each as usize);
        let is_shared = fair as usize >= floor && count(&self.expected_vms(now)) > 1;
        let part = |fair: f64| fair.ceil() as usize;
        let is_shared = mutated("qos.depth.a-batch-is-whoevers-waits", is_shared, false);
        let of_vms = if is_shared { of_vms.into_iter().map(part).collect() } else { Vec::new() };
        Depth { all: floor.max(fair as usize), of_vms, lead: LEAD as f64 / lightest }
    }

    /// Returns which VMs have requests in flight, or are expected to send soon, by their places.
    fn expected_vms(&self, now: u64) -> Vec<bool> {
        let is_expected = |disk: &DiskState| {
            let hangs = mutated("qos.depth.those-that-hang-are-expected", disk.is_stalled, false);
            match self.patience.is_out() {
                _ if hangs => false,
                true => disk.on_their_way > 0 || disk.is_counted && disk.waiting > 0,
                false => disk.is_expected(now),
            }
        };
        let mut vms = vec![false; self.vm_slots.len()];
        for (at, disk) in &self.disks {
            vms[self.fair.vm_of(DiskKey(at)).place()] |= is_expected(disk);
        }
        vms
    }

    /// Subtracts the least cost per weight from that of all VMs. VMs that are not expected start
    /// over.
    pub(super) fn settle_parts(&mut self, now: u64) {
        self.had.resize(self.vm_slots.len(), 0.0);
        if self.census.depth.of_vms.is_empty() {
            self.last = None;
            return self.had.fill(0.0);
        }
        let expected = self.expected_vms(now);
        self.settle_in = count(&expected) / SETTLED_EACH;
        let those = self.had.iter().enumerate().filter(|(vm, _)| expected[*vm]);
        let last = those.min_by(|(_, one), (_, other)| one.total_cmp(other));
        let least = last.map_or(f64::MAX, |(_, had)| *had);
        self.last = last.map(|(vm, _)| vm);
        for (had, is_here) in self.had.iter_mut().zip(expected) {
            *had = if is_here { (*had - least).max(0.0) } else { 0.0 };
        }
    }

    /// Counts a grant of this cost for the disk's VM. When the VM that had least has caught up, the
    /// parts are settled: others may go on, long before the next census.
    pub(super) fn count_part(&mut self, disk: DiskKey, cost: u64, now: u64) {
        let vm = self.fair.vm_of(disk);
        let Some(had) = self.had.get_mut(vm.place()) else { return };
        *had += cost as f64 / f64::from(self.fair.vm_weight(vm));
        self.settle_in = self.settle_in.saturating_sub(1);
        let last = self.last.and_then(|last| self.had.get(last));
        let has_caught_up = last.is_some_and(|had| *had > self.census.depth.lead * CAUGHT_UP);
        let settles = mutated("qos.depth.parts-are-settled-by-the-census-only", true, false);
        if has_caught_up && self.settle_in == 0 && settles {
            self.settle_parts(now);
        }
    }

    /// Returns the active disks.
    fn active(&self) -> Vec<Active> {
        let counted = || self.disks.iter().filter(|(_, disk)| disk.is_counted);
        let mut of_vms = vec![0.0; self.vm_slots.len()];
        for (at, _) in counted() {
            of_vms[self.fair.vm_of(DiskKey(at)).place()] +=
                f64::from(self.fair.weight(DiskKey(at)));
        }
        let active = counted().map(|(at, disk)| {
            let vm = self.fair.vm_of(DiskKey(at));
            let part = f64::from(self.fair.weight(DiskKey(at))) / of_vms[vm.place()];
            let weight = f64::from(self.fair.vm_weight(vm)) * part;
            let (requests, cost) = (disk.demand.requests(), disk.demand.cost());
            Active { vm: vm.place(), weight, requests, cost }
        });
        active.collect()
    }

    /// Returns whether the VM of a disk has less than its part in flight, and is not ahead.
    pub(super) fn has_room(&self, disk: DiskKey) -> bool {
        let vm = self.fair.vm_of(disk).place();
        let part = self.census.depth.of_vms.get(vm);
        part.is_none_or(|part| self.vm_slots[vm] < *part) && self.is_level(disk)
    }

    /// Returns whether the VM of a disk is not too far ahead of the others expected.
    pub(super) fn is_level(&self, disk: DiskKey) -> bool {
        let vm = self.fair.vm_of(disk);
        let is_bounded = vm.place() < self.census.depth.of_vms.len();
        let had = self.had.get(vm.place()).copied().unwrap_or(0.0);
        let is_level = mutated("qos.depth.vms-get-ahead", had <= self.census.depth.lead, true);
        !is_bounded || is_level
    }
}

fn count(vms: &[bool]) -> usize {
    vms.iter().filter(|is_one| **is_one).count()
}
