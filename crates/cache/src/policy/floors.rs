//! What each VM keeps of a cache, whatever the others do, and how much its uses count.
//!
//! A VM is not to have fewer hits than it would have alone with the part of the cache that its
//! weight allows; its miss-ratio curve says how many those are, and how many blocks they take.
//! While it holds no more than that, it loses none for other VMs. Those need not be the best ones,
//! so it has a *floor* beside that: while it has fewer hits, the floor rises, and so many of its
//! blocks are protected when they would be given up. While it has more, the floor sinks, and the VM
//! that makes the best use of a block has it. Nothing is set aside: what a VM does not use, others
//! do, and when it wakes, what they have above their own bounds makes way.
//!
//! All of it follows the VM's own accesses, and the time that [`Floors::pass`] is told: how often
//! other VMs access the cache changes nothing. They could else have all that a VM holds before it
//! has accessed enough to show in its hits.

use std::sync::Arc;
use std::time::Duration;

use flowstone_block::mutant;

use crate::curve::Curve;
use crate::names::BlockId;
use crate::vms::Vms;

/// What VMs can be promised together, in parts of the capacity: what must go has to be found soon.
const PROMISED: f64 = 0.9;
/// Both bounds end at what has this part of the hits that were promised...
const NEEDED: f64 = 0.95;
/// What is protected is given up nearly in order of age: a little more than what LRU would need.
const SLACK: f64 = 1.25;
/// ...and at so many times the accesses of late: a VM that accesses little needs little.
const BLOCKS_PER_ACCESS: f64 = 8.0;
/// Accesses count less the longer ago they are: by a factor of e after this time.
const LATE: Duration = Duration::from_secs(60);
/// No more accesses are remembered than what allows this many times the VM's part: a VM that has
/// accessed much, and stops, is idle as soon as others.
const REMEMBERED: f64 = 2.0;
/// A floor rises below the hit ratio that was promised, and sinks when so much above that.
const MARGIN: f64 = 0.02;
/// By what part of what the weight allows a floor rises and sinks.
const RISE: usize = 8;
const SINK: usize = 16;
/// A VM is looked at after so many of its own accesses, in parts of what its weight allows...
const LOOKS_PER_PART: usize = 8;
/// ...and at least so many accesses of its curve's sample: ten such looks make the curve known.
const SAMPLED_PER_LOOK: usize = 16;
/// How much what has been counted weighs after another look.
const FADE: f64 = 0.9;
/// A use counts no more than so many of a VM with the mean share.
const USES_MAX: f64 = 16.0;
/// VMs of which too little is known may have this part of all weight; else nothing is known of all
/// of them.
const UNKNOWN_MAX: f64 = 0.05;

/// What each VM holds, and what it is not to lose.
#[derive(Debug, Default)]
pub struct Floors {
    vms: Arc<Vms>,
    capacity: usize,
    capacity_max: usize,
    /// Blocks that are held, by number of the disk.
    held_of_disk: Vec<usize>,
    /// By number of the VM. Empty if there are not two, who could take something from each other.
    states: Vec<State>,
    /// Of the samples of curves.
    key: u64,
}

#[derive(Debug)]
struct State {
    /// Blocks that are held, of all its disks.
    held: usize,
    /// So many may be protected.
    floor: usize,
    /// So many take the hits that were promised: while no more are held, none is given up for
    /// others.
    needed: usize,
    /// What a use of it counts.
    uses: u32,
    /// Accesses of late.
    recent: f64,
    /// Its own accesses until the next look.
    until_look: usize,
    accesses: f64,
    hits: f64,
    curve: Curve,
}

impl Floors {
    /// Of no VMs. `key` decides what curves look at.
    pub fn new(key: u64) -> Self {
        Self { key, ..Self::default() }
    }

    /// These are the VMs from now on, and they share so many blocks, one day up to `capacity_max`.
    /// A VM with a disk that it has had before is the same one.
    pub fn set(&mut self, vms: &Arc<Vms>, capacity: usize, capacity_max: usize) {
        if **vms == *self.vms {
            return;
        }
        let before = std::mem::replace(&mut self.vms, Arc::clone(vms));
        let mut known: Vec<_> = self.states.drain(..).map(Some).collect();
        (self.capacity, self.capacity_max) = (capacity, capacity_max);
        let count = if vms.len() > 1 { vms.len() } else { 0 };
        let mut states: Vec<Option<State>> = (0..count).map(|_| None).collect();
        for disk in 0..vms.disks() {
            let (Some(vm), Some(was)) = (vms.of_disk(disk), before.of_disk(disk)) else { continue };
            if let (Some(state @ None), Some(old)) = (states.get_mut(vm), known.get_mut(was))
                && !mutant("cache.floors.forget-vms-that-stay")
            {
                *state = old.take();
            }
        }
        let new = || State::new(capacity_max, self.key);
        self.states = states.into_iter().map(|state| state.unwrap_or_else(new)).collect();
        for (vm, state) in self.states.iter_mut().enumerate() {
            let times_the_mean = vms.weight(vm) * count as f64;
            state.uses = times_the_mean.clamp(1.0, USES_MAX).round() as u32;
            state.held = 0;
        }
        for (disk, held) in self.held_of_disk.iter().enumerate() {
            if let Some(state) = vms.of_disk(disk).and_then(|vm| self.states.get_mut(vm)) {
                state.held += if mutant("cache.floors.forget-what-is-held") { 0 } else { *held };
            }
        }
        self.bound_all();
    }

    /// They share so many blocks from now on.
    pub fn resize(&mut self, capacity: usize) {
        self.capacity = capacity;
        self.bound_all();
    }

    /// So much time has passed.
    pub fn pass(&mut self, time: Duration) {
        let left = (-time.as_secs_f64() / LATE.as_secs_f64()).exp();
        for vm in 0..self.states.len() {
            let remembered = REMEMBERED * self.allowed(vm, self.capacity_max) / BLOCKS_PER_ACCESS;
            let state = &mut self.states[vm];
            if !mutant("cache.floors.idle-vms-keep-all") {
                state.recent = state.recent.min(remembered) * left;
            }
        }
        self.bound_all();
    }

    fn bound_all(&mut self) {
        for vm in 0..self.states.len() {
            self.bound(vm);
        }
    }

    /// Holds a VM's bounds at what its hits take.
    fn bound(&mut self, vm: usize) {
        let allowed = self.allowed(vm, self.capacity) as usize;
        let entitled = self.entitled(vm) as usize;
        let state = &mut self.states[vm];
        let needed = (state.curve.enough(NEEDED, allowed) as f64 * SLACK) as usize;
        let is_bounded = !mutant("cache.floors.above-what-is-needed");
        state.needed = if is_bounded { needed.min(entitled) } else { entitled };
        state.floor = state.floor.min(state.needed);
    }

    /// The blocks that a VM's weight allows it of so many.
    fn allowed(&self, vm: usize, capacity: usize) -> f64 {
        capacity as f64 * PROMISED * self.vms.weight(vm)
    }

    /// Those of them that it can use, as often as it has accessed some of late.
    fn entitled(&self, vm: usize) -> f64 {
        let used = self.states[vm].recent * BLOCKS_PER_ACCESS;
        self.allowed(vm, self.capacity).min(used)
    }

    /// A block is read or written. Returns how many uses that counts as: more than one for a VM
    /// that has more than the mean share.
    pub fn access(&mut self, block: BlockId, is_hit: bool) -> u32 {
        let Some(vm) = self.vm(block) else { return 1 };
        let state = &mut self.states[vm];
        state.recent += 1.0;
        state.accesses += 1.0;
        state.hits += f64::from(u8::from(is_hit));
        state.curve.access(block);
        state.until_look -= 1;
        let (uses, is_due) = (state.uses, state.until_look == 0);
        if mutant("cache.floors.looks-at-all-whoever-accesses") && is_due {
            (0..self.states.len()).for_each(|vm| self.look(vm));
        } else if is_due {
            self.look(vm);
        }
        uses
    }

    /// Has a VM's floor rise or sink.
    fn look(&mut self, vm: usize) {
        let allowed = self.allowed(vm, self.capacity) as usize;
        let state = &mut self.states[vm];
        let promised = state.curve.hit_ratio(allowed);
        let ratio = state.hits / state.accesses.max(1.0);
        if ratio < promised {
            state.floor += allowed / RISE;
        } else if ratio > promised + MARGIN {
            state.floor = state.floor.saturating_sub(allowed / SINK);
        }
        self.bound(vm);
        let state = &mut self.states[vm];
        let sampled = SAMPLED_PER_LOOK * state.curve.sampled_of();
        state.until_look = (allowed / LOOKS_PER_PART).max(sampled).max(64);
        state.curve.fade(FADE);
        state.hits *= FADE;
        state.accesses *= FADE;
    }

    /// The number of the VM that a block is of, if that shares the cache with others.
    pub fn vm(&self, block: BlockId) -> Option<usize> {
        self.vms.of(block).filter(|vm| *vm < self.states.len())
    }

    /// A block is held from now on.
    pub fn count_in(&mut self, block: BlockId) {
        let disk = block.disk() as usize;
        if disk >= self.held_of_disk.len() {
            self.held_of_disk.resize(disk + 1, 0);
        }
        self.held_of_disk[disk] += 1;
        if let Some(vm) = self.vm(block) {
            self.states[vm].held += 1;
        }
    }

    /// A block is not held any more.
    pub fn count_out(&mut self, block: BlockId) {
        self.held_of_disk[block.disk() as usize] -= 1;
        if let Some(vm) = self.vm(block) {
            self.states[vm].held -= 1;
        }
    }

    /// Whether a VM that has so many protected blocks loses none of them when one is given up for a
    /// block of the VM `by`.
    pub fn keeps(&self, vm: usize, protected: usize, by: Option<usize>) -> bool {
        let State { held, floor, needed, .. } = self.states[vm];
        // What it takes in itself, it makes room for itself.
        let is_own = by == Some(vm) && !mutant("cache.floors.grows-at-others-cost");
        let loses_none = held + usize::from(is_own) <= needed;
        loses_none && !mutant("cache.floors.lag-behind-others") || floor > 0 && protected <= floor
    }

    /// Whether there are VMs that could take something from each other.
    pub fn are_shared(&self) -> bool {
        !self.states.is_empty()
    }

    /// The part of the accesses that a cache of so many blocks would answer, if each VM counts by
    /// its weight and not by how often it accesses the cache. Nothing while too little is known.
    pub fn hit_ratio(&self, blocks: usize) -> Option<f64> {
        let held_of_all: usize = self.held_of_disk.iter().sum();
        let (mut hits, mut known, mut unknown) = (0.0, 0.0, 0.0);
        for (vm, State { held, recent, curve, .. }) in self.states.iter().enumerate() {
            let by_rate = mutant("cache.sizes.vms-count-by-rate");
            let weight = if by_rate { *recent } else { self.entitled(vm) };
            if !curve.is_known() {
                unknown += weight;
                continue;
            }
            // It would hold the part that it holds now, and keep what its weight allows.
            let part = *held as f64 * blocks as f64 / held_of_all.max(1) as f64;
            let kept = self.allowed(vm, blocks).min(*held as f64);
            let kept = if mutant("cache.sizes.vms-lose-what-is-safe") { 0.0 } else { kept };
            known += weight;
            hits += weight * curve.hit_ratio(part.max(kept) as usize);
        }
        let is_known = known > 0.0 && unknown <= UNKNOWN_MAX * (known + unknown);
        is_known.then(|| hits / known)
    }
}

impl State {
    fn new(capacity_max: usize, key: u64) -> Self {
        Self {
            held: 0,
            floor: 0,
            needed: 0,
            uses: 1,
            recent: 0.0,
            until_look: 1,
            accesses: 0.0,
            hits: 0.0,
            curve: Curve::new(capacity_max, key),
        }
    }
}

#[cfg(test)]
mod tests;
