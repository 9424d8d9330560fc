//! What each VM keeps of a cache, whatever the others do, and how much its uses count.
//!
//! A VM is not to have fewer hits than it would have alone with the part of the cache that its weight allows; its
//! miss-ratio curve says how many those are. While it has fewer, its floor rises: blocks of a VM that has no more
//! than its floor are not given up for those of others. While it has more, the floor sinks, and who makes the
//! best use of a block has it. Nothing is set aside: what a VM does not use, others do, and when it wakes, what
//! they have above their own floors makes way.

use std::sync::Arc;

use crate::curve::Curve;
use crate::names::BlockId;
use crate::vms::Vms;

/// What VMs can be promised together, in parts of the capacity: what must go has to be found soon.
const PROMISED: f64 = 0.9;
/// A floor does not rise above what has this part of the hits that were promised.
const NEEDED: f64 = 0.95;
/// A floor rises below the hit ratio that was promised, and sinks when so much above that.
const MARGIN: f64 = 0.02;
/// By what part of what the weight allows a floor rises and sinks.
const RISE: usize = 8;
const SINK: usize = 16;
/// Floors are looked at after so many accesses, in parts of the capacity.
const LOOKS_PER_CAPACITY: usize = 4;
/// How much what has been counted weighs after another look.
const FADE: f64 = 0.9;
/// A use counts no more than so many of a VM with the mean share.
const USES_MAX: f64 = 16.0;

/// What is kept of each VM.
#[derive(Debug, Default)]
pub struct Floors {
    vms: Arc<Vms>,
    capacity: usize,
    /// Blocks kept, by number of the disk.
    kept_of_disk: Vec<usize>,
    /// By number of the VM. Empty if there are not two, who could take something from each other.
    states: Vec<State>,
    /// Counts accesses.
    now: u64,
    next_look: u64,
}

#[derive(Debug)]
struct State {
    /// Blocks kept of all its disks.
    kept: usize,
    /// While it has no more than these, they stay.
    floor: usize,
    last_access: u64,
    /// What a use of it counts.
    uses: u32,
    accesses: f64,
    hits: f64,
    curve: Curve,
}

impl Floors {
    /// These are the VMs from now on, and they share so many blocks.
    pub fn set(&mut self, vms: &Arc<Vms>, capacity: usize) {
        self.vms = Arc::clone(vms);
        self.capacity = capacity;
        let count = if vms.len() > 1 { vms.len() } else { 0 };
        let state = |vm| {
            let times_the_mean = vms.weight(vm) * count as f64;
            State {
                kept: 0,
                floor: 0,
                last_access: self.now,
                uses: times_the_mean.clamp(1.0, USES_MAX).round() as u32,
                accesses: 0.0,
                hits: 0.0,
                curve: Curve::new(capacity),
            }
        };
        self.states = (0..count).map(state).collect();
        for (disk, kept) in self.kept_of_disk.iter().enumerate() {
            if let Some(state) = vms.of_disk(disk).and_then(|vm| self.states.get_mut(vm)) {
                state.kept += kept;
            }
        }
    }

    /// They share so many blocks from now on.
    pub fn resize(&mut self, capacity: usize) {
        self.capacity = capacity;
        self.next_look = self.now;
    }

    /// A block is read or written. Returns how many uses that counts as: more than one for a VM that has more
    /// than the mean share.
    pub fn access(&mut self, block: BlockId, is_hit: bool) -> u32 {
        self.now += 1;
        if self.now >= self.next_look {
            self.look();
        }
        let now = self.now;
        let Some(state) = self.state(block) else { return 1 };
        state.last_access = now;
        state.accesses += 1.0;
        state.hits += f64::from(u8::from(is_hit));
        state.curve.access(block);
        state.uses
    }

    /// Has floors rise and sink.
    fn look(&mut self) {
        self.next_look = self.now + (self.capacity / LOOKS_PER_CAPACITY).max(64) as u64;
        for (vm, state) in self.states.iter_mut().enumerate() {
            state.look((self.capacity as f64 * PROMISED * self.vms.weight(vm)) as usize);
        }
    }

    fn state(&mut self, block: BlockId) -> Option<&mut State> {
        let vm = self.vms.of(block)?;
        self.states.get_mut(vm)
    }

    /// A block is kept from now on.
    pub fn count_in(&mut self, block: BlockId) {
        let disk = block.disk() as usize;
        if disk >= self.kept_of_disk.len() {
            self.kept_of_disk.resize(disk + 1, 0);
        }
        self.kept_of_disk[disk] += 1;
        if let Some(state) = self.state(block) {
            state.kept += 1;
        }
    }

    /// A block is not kept any more.
    pub fn count_out(&mut self, block: BlockId) {
        self.kept_of_disk[block.disk() as usize] -= 1;
        if let Some(state) = self.state(block) {
            state.kept -= 1;
        }
    }

    /// Whether a block is not to be given up for those of others. A VM is idle, and loses that, when it has not
    /// accessed anything while the cache was accessed as often as it has blocks.
    pub fn protect(&self, block: BlockId) -> bool {
        let state = self.vms.of(block).and_then(|vm| self.states.get(vm));
        state.is_some_and(|state| {
            state.kept <= state.floor && self.now - state.last_access <= self.capacity as u64
        })
    }
}

impl State {
    /// Its weight allows it so many blocks.
    fn look(&mut self, allowed: usize) {
        let promised = self.curve.hit_ratio(allowed);
        let ratio = self.hits / self.accesses.max(1.0);
        if self.curve.is_known() && ratio < promised {
            self.floor += allowed / RISE;
        } else if ratio > promised + MARGIN {
            self.floor = self.floor.saturating_sub(allowed / SINK);
        }
        self.floor = self.floor.min(self.curve.enough(NEEDED, allowed));
        self.curve.fade(FADE);
        self.hits *= FADE;
        self.accesses *= FADE;
    }
}
