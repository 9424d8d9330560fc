//! How many requests may be at a device while disks contend: as many as weights allow.
//!
//! Shares follow the weights as long as something of each disk waits. So the depth is what the disk
//! that wants least for its weight wants to have at the device, and of each other one as much for
//! its own weight, a little less in all. A disk's weight here is its part of all: that of its VM,
//! of which it has its own weight's part among the active disks of the VM.
//!
//! It is never less than four for the heaviest disk, fewer for the others, as far as they want
//! that: sixteen disks with some requests each are to have the device, although one hardly asks.
//! And for one disk that wants them it is [`DEPTH_LEAST`], of which a lighter one than the heaviest
//! has its weight's part: the next request of a heavy disk stands behind what is on its way.
//!
//! A VM has no more than its part of that while another one is expected to ask again, which has had
//! something come back just now: completions come in batches, and what a heavy VM's batch leaves
//! would be a light one's before the heavy one's guest has seen that it may go on. Nor does it get
//! ahead of such a one by more than a [`LEAD`](super::LEAD) of the lightest, counted from when both
//! wanted more than there is: tags forget what a VM has not had while nothing of it waited.

use flowstone_block::mutant;

use super::{LEAD, Scheduler};
use crate::DiskKey;

/// So many for one disk, if it is as heavy as any,
pub const DEPTH_LEAST: usize = 16;
/// ... and for one that weighs nothing beside others: with fewer a device has nothing to choose
/// from.
const DEPTH_LIGHT: f64 = 2.0;
/// So many for each of the heaviest disks, if it wants them.
const DEPTH_EACH: f64 = 4.0;
/// Of the depth at which the disk that wants least would have nothing waiting.
const BACKLOGGED: f64 = 7.0 / 8.0;

/// What an active disk weighs and wants.
struct Active {
    vm: usize,
    weight: f64,
    requests: f64,
    cost: f64,
}

/// How many requests may be on their way.
#[derive(Default)]
pub struct Depth {
    /// Of all disks.
    pub all: usize,
    /// Of each VM, by its place; those for which there is none have no bound of their own.
    pub of_vms: Vec<usize>,
    /// How much more than another one a VM may have had for its weight.
    pub lead: f64,
}

impl Scheduler {
    /// See the module.
    pub(super) fn depth(&self, now: u64) -> Depth {
        let active = self.active();
        let heaviest = active.iter().map(|disk| disk.weight).fold(0.0, f64::max);
        let per_weight = |disk: &Active| disk.requests * disk.cost / disk.weight;
        let least = active.iter().map(per_weight).fold(f64::MAX, f64::min);
        let (mut fair, mut each, mut one) = (0.0, 0.0, DEPTH_LIGHT);
        let (mut of_vms, mut weights) = (vec![0.0; self.vm_places()], vec![0.0; self.vm_places()]);
        for Active { vm, weight, requests, cost } in active {
            weights[vm] += weight;
            let own = BACKLOGGED * least * weight / cost.max(1.0);
            fair += own;
            of_vms[vm] += own;
            each += requests.min(DEPTH_EACH * weight / heaviest);
            // What nothing is known of may want anything.
            let wanted = if requests > 0.0 { requests } else { f64::MAX };
            let part =
                if mutant("qos.depth.a-floor-for-light-disks") { 1.0 } else { weight / heaviest };
            one = wanted.min(DEPTH_LEAST as f64 * part).max(one);
        }
        let lightest = weights.into_iter().filter(|it| *it > 0.0).fold(f64::MAX, f64::min);
        let floor = (one as usize).max(each as usize);
        let is_shared = fair as usize >= floor && self.expected_vms(now).len() > 1;
        let part = |fair: f64| fair.ceil() as usize;
        let is_bounded = is_shared && !mutant("qos.depth.a-batch-is-whoevers-waits");
        let of_vms = if is_bounded { of_vms.into_iter().map(part).collect() } else { Vec::new() };
        Depth { all: floor.max(fair as usize), of_vms, lead: LEAD as f64 / lightest }
    }

    /// The VMs that have something at the device, or will have.
    fn expected_vms(&self, now: u64) -> Vec<usize> {
        let expected = self.disks.iter().filter(|(_, disk)| disk.is_expected(now));
        let mut vms: Vec<_> =
            expected.map(|(at, _)| self.fair.vm_of(DiskKey(at)).place()).collect();
        vms.sort_unstable();
        vms.dedup();
        vms
    }

    /// Counts what VMs have had from that on which has had least for its weight. What one has had
    /// long ago is forgotten.
    pub(super) fn settle_parts(&mut self, now: u64) {
        let expected = self.expected_vms(now);
        self.had.resize(self.vm_places(), 0.0);
        if self.census.depth.of_vms.is_empty() {
            return self.had.fill(0.0);
        }
        let least = expected.iter().map(|vm| self.had[*vm]).fold(f64::MAX, f64::min);
        for (vm, had) in self.had.iter_mut().enumerate() {
            let is_here = expected.binary_search(&vm).is_ok();
            *had = if is_here { (*had - least).max(0.0) } else { 0.0 };
        }
    }

    /// A VM has had something of this cost.
    pub(super) fn count_part(&mut self, disk: DiskKey, cost: u64) {
        let vm = self.fair.vm_of(disk);
        if let Some(had) = self.had.get_mut(vm.place()) {
            *had += cost as f64 / f64::from(self.fair.vm_weight(vm));
        }
    }

    /// The active disks.
    fn active(&self) -> Vec<Active> {
        let counted = || self.disks.iter().filter(|(_, disk)| disk.is_counted);
        let mut of_vms = vec![0.0; self.vm_places()];
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

    /// Whether the VM of a disk has less than its part on its way, and is not ahead.
    pub(super) fn has_room(&self, disk: DiskKey) -> bool {
        let vm = self.fair.vm_of(disk).place();
        let part = self.census.depth.of_vms.get(vm);
        part.is_none_or(|part| self.slots_of(vm) < *part) && self.is_level(disk)
    }

    /// Whether the VM of a disk is not ahead of one that is expected.
    pub(super) fn is_level(&self, disk: DiskKey) -> bool {
        let vm = self.fair.vm_of(disk);
        let is_bounded = vm.place() < self.census.depth.of_vms.len();
        let had = self.had.get(vm.place()).copied().unwrap_or(0.0);
        let is_level = had <= self.census.depth.lead || mutant("qos.depth.vms-get-ahead");
        !is_bounded || is_level
    }

    fn slots_of(&self, vm: usize) -> usize {
        self.vm_slots.get(vm).copied().unwrap_or(0)
    }
}
