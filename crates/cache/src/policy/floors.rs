//! Guaranteed parts of VMs in a cache, and weights of their uses.
//!
//! A VM should have no fewer hits than it would have alone, with the part of the cache that its
//! weight allows; its miss-ratio curve tells how many hits those are, and how many blocks they
//! take. While it holds no more blocks than that, it loses none to other VMs. These need not be the
//! best blocks, so it also has a *floor*: while it has fewer hits than promised, the floor rises,
//! and up to that many of its blocks are protected from eviction. While it has more, the floor
//! sinks, and blocks go to the VM that makes the best use of them. Nothing is reserved: others use
//! the part that a VM does not use, and when it becomes active, blocks above their own bounds are
//! evicted first.
//!
//! All of this depends on the VM's own accesses, and on the time reported by [`Floors::pass`], not
//! on how often other VMs access the cache. Otherwise they could take all blocks of a VM before it
//! has accessed enough for its hits to tell.

use std::sync::Arc;
use std::time::Duration;

use flowstone_block::mutated;

use crate::curve::Curve;
use crate::names::BlockId;
use crate::vms::Vms;

/// Part of the capacity promised to all VMs together: some blocks must stay evictable.
const PROMISED: f64 = 0.9;
/// Part of the promised hits that both bounds are sized for.
const NEEDED: f64 = 0.95;
/// Factor on the size that LRU needs: protected blocks are evicted only nearly in order of age.
const SLACK: f64 = 1.25;
/// Caps both bounds at this many blocks per recent access, so that a rarely active VM reserves
/// little.
const BLOCKS_PER_ACCESS: f64 = 8.0;
/// Time constant of the decay of recent accesses.
const LATE: Duration = Duration::from_secs(60);
/// Cap on remembered accesses, as a multiple of those that allow the VM's part: a VM that has
/// accessed much, and stops, becomes idle as soon as others.
const REMEMBERED: f64 = 2.0;
/// Excess over the promised hit ratio at which a floor sinks; below the promised one it rises.
const MARGIN: f64 = 0.02;
/// Divisors of the VM's part that give the steps by which a floor rises and sinks.
const RISE: usize = 8;
const SINK: usize = 16;
/// Looks at a VM per as many of its own accesses as its part has blocks.
const LOOKS_PER_PART: usize = 8;
/// Least sampled accesses of its curve between two looks: ten looks make the curve known.
const SAMPLED_PER_LOOK: usize = 16;
/// Factor by which counts decay with each look.
const FADE: f64 = 0.9;
/// Most uses that one access counts as.
const USES_MAX: f64 = 16.0;
/// Greatest part of all weight whose VMs' curves may be unknown for a joint estimate.
const UNKNOWN_MAX: f64 = 0.05;

/// The blocks held by each VM, and its bounds.
#[derive(Debug, Default)]
pub struct Floors {
    vms: Arc<Vms>,
    capacity: usize,
    capacity_max: usize,
    /// Blocks held, by disk number.
    held_of_disk: Vec<usize>,
    /// By VM number. Empty with fewer than two VMs, which cannot take blocks from each other.
    states: Vec<State>,
    /// Key of the curves' samples.
    key: u64,
}

#[derive(Debug)]
struct State {
    /// Blocks held, of all its disks.
    held: usize,
    /// Most blocks that may be protected.
    floor: usize,
    /// Blocks needed for the promised hits: while no more are held, none is evicted for others.
    needed: usize,
    /// Uses that one access counts as.
    uses: u32,
    /// Recent accesses, decaying.
    recent: f64,
    /// Its own accesses until the next look.
    until_look: usize,
    accesses: f64,
    hits: f64,
    curve: Curve,
}

impl Floors {
    /// Makes the floors of no VMs. `key` selects the curves' samples.
    pub fn new(key: u64) -> Self {
        Self { key, ..Self::default() }
    }

    /// Sets the VMs, which share `capacity` blocks, and at most `capacity_max` later. A VM with a
    /// disk that it had before keeps its state.
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
            if let (Some(state @ None), Some(old)) = (states.get_mut(vm), known.get_mut(was)) {
                let keeps = mutated("cache.floors.forget-vms-that-stay", true, false);
                *state = if keeps { old.take() } else { None };
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
                let held = mutated("cache.floors.forget-what-is-held", *held, 0);
                state.held += held;
            }
        }
        self.bound_all();
    }

    /// Sets the number of blocks that they share.
    pub fn resize(&mut self, capacity: usize) {
        self.capacity = capacity;
        self.bound_all();
    }

    /// Reports the time that has passed.
    pub fn pass(&mut self, time: Duration) {
        let left = (-time.as_secs_f64() / LATE.as_secs_f64()).exp();
        for vm in 0..self.states.len() {
            let remembered = REMEMBERED * self.allowed(vm, self.capacity_max) / BLOCKS_PER_ACCESS;
            let state = &mut self.states[vm];
            let decays = mutated("cache.floors.idle-vms-keep-all", true, false);
            if decays {
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

    /// Limits a VM's bounds to what its hits take.
    fn bound(&mut self, vm: usize) {
        let allowed = self.allowed(vm, self.capacity) as usize;
        let entitled = self.entitled(vm) as usize;
        let state = &mut self.states[vm];
        let needed = (state.curve.enough(NEEDED, allowed) as f64 * SLACK) as usize;
        let bounded = needed.min(entitled);
        let needed = mutated("cache.floors.above-what-is-needed", bounded, entitled);
        state.needed = needed;
        state.floor = state.floor.min(state.needed);
    }

    /// Returns a VM's part of `capacity` blocks, by its weight.
    fn allowed(&self, vm: usize, capacity: usize) -> f64 {
        capacity as f64 * PROMISED * self.vms.weight(vm)
    }

    /// Returns the blocks of that part that it can use, by its recent accesses.
    fn entitled(&self, vm: usize) -> f64 {
        let used = self.states[vm].recent * BLOCKS_PER_ACCESS;
        self.allowed(vm, self.capacity).min(used)
    }

    /// Counts an access to a block. Returns how many uses it counts as: more than one for a VM with
    /// more than the mean share.
    pub fn access(&mut self, block: BlockId, is_hit: bool) -> u32 {
        let Some(vm) = self.vm(block) else { return 1 };
        let state = &mut self.states[vm];
        state.recent += 1.0;
        state.accesses += 1.0;
        state.hits += f64::from(u8::from(is_hit));
        state.curve.access(block);
        state.until_look -= 1;
        let (uses, is_due) = (state.uses, state.until_look == 0);
        if is_due {
            let all = 0..self.states.len();
            let due = mutated("cache.floors.looks-at-all-whoever-accesses", vm..vm + 1, all);
            due.for_each(|vm| self.look(vm));
        }
        uses
    }

    /// Raises or lowers a VM's floor.
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

    /// Returns the number of the VM that a block belongs to, if it shares the cache with others.
    pub fn vm(&self, block: BlockId) -> Option<usize> {
        self.vms.of(block).filter(|vm| *vm < self.states.len())
    }

    /// Counts a block as held.
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

    /// Counts a block as no longer held.
    pub fn count_out(&mut self, block: BlockId) {
        self.held_of_disk[block.disk() as usize] -= 1;
        if let Some(vm) = self.vm(block) {
            self.states[vm].held -= 1;
        }
    }

    /// Returns whether a VM with this many protected blocks loses none of them when one is evicted
    /// for a block of the VM `by`.
    pub fn keeps(&self, vm: usize, protected: usize, by: Option<usize>) -> bool {
        let State { held, floor, needed, .. } = self.states[vm];
        // It makes room itself for blocks that it takes in.
        let is_own = mutated("cache.floors.grows-at-others-cost", by == Some(vm), false);
        let loses_none = held + usize::from(is_own) <= needed;
        let loses_none = mutated("cache.floors.lag-behind-others", loses_none, false);
        loses_none || floor > 0 && protected <= floor
    }

    /// Returns whether there are VMs that could take blocks from each other.
    pub fn are_shared(&self) -> bool {
        !self.states.is_empty()
    }

    /// Returns the estimated hit ratio of a cache of this many blocks, if each VM counts by its
    /// weight and not by its rate of accesses; `None` while too little is known.
    pub fn hit_ratio(&self, blocks: usize) -> Option<f64> {
        let held_of_all: usize = self.held_of_disk.iter().sum();
        let (mut hits, mut known, mut unknown) = (0.0, 0.0, 0.0);
        for (vm, State { held, recent, curve, .. }) in self.states.iter().enumerate() {
            let weight = mutated("cache.sizes.vms-count-by-rate", self.entitled(vm), *recent);
            if !curve.is_known() {
                unknown += weight;
                continue;
            }
            // It would hold the same fraction as now, and keep its part.
            let part = *held as f64 * blocks as f64 / held_of_all.max(1) as f64;
            let kept = self.allowed(vm, blocks).min(*held as f64);
            let kept = mutated("cache.sizes.vms-lose-what-is-safe", kept, 0.0);
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
