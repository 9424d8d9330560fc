//! What each VM keeps of a cache, whatever the others do, and how much its uses count.
//!
//! A VM is not to have fewer hits than it would have alone with the part of the cache that its weight allows; its
//! miss-ratio curve says how many those are. While it has fewer, its floor rises: so many of its blocks are protected,
//! when they would be given up for those of others. While it has more, the floor sinks, and who makes the
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
/// What is protected is given up nearly in order of age: a little more than what LRU would need.
const SLACK: f64 = 1.25;
/// A floor is no higher than so many times the accesses of late (of ten looks or so): who comes now and then only
/// needs little.
const BLOCKS_PER_ACCESS: f64 = 8.0;
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

/// What is protected of each VM.
#[derive(Debug, Default)]
pub struct Floors {
    vms: Arc<Vms>,
    capacity: usize,
    /// Blocks that are protected, by number of the disk.
    protected_of_disk: Vec<usize>,
    /// By number of the VM. Empty if there are not two, who could take something from each other.
    states: Vec<State>,
    /// Counts accesses.
    now: u64,
    next_look: u64,
    /// VMs that have more protected blocks than their floors. At each look, those that are idle and disks whose VM
    /// has gone are added, if they have some.
    over: usize,
    /// Of the samples of curves.
    key: u64,
}

#[derive(Debug)]
struct State {
    /// Blocks that are protected, of all its disks.
    protected: usize,
    /// So many may be.
    floor: usize,
    last_access: u64,
    /// What a use of it counts.
    uses: u32,
    accesses: f64,
    hits: f64,
    curve: Curve,
}

impl Floors {
    /// Of no VMs. `key` decides what curves look at.
    pub fn new(key: u64) -> Self {
        Self { key, ..Self::default() }
    }

    /// These are the VMs from now on, and they share so many blocks, one day up to `capacity_max`. A VM with a
    /// disk that it has had before is the same one.
    pub fn set(&mut self, vms: &Arc<Vms>, capacity: usize, capacity_max: usize) {
        if **vms == *self.vms {
            return;
        }
        let before = std::mem::replace(&mut self.vms, Arc::clone(vms));
        let mut known: Vec<_> = self.states.drain(..).map(Some).collect();
        self.capacity = capacity;
        let count = if vms.len() > 1 { vms.len() } else { 0 };
        let mut states: Vec<Option<State>> = (0..count).map(|_| None).collect();
        for disk in 0..vms.disks() {
            let (Some(vm), Some(was)) = (vms.of_disk(disk), before.of_disk(disk)) else { continue };
            if let (Some(state @ None), Some(old)) = (states.get_mut(vm), known.get_mut(was)) {
                *state = old.take();
            }
        }
        let new = || State::new(self.now, capacity_max, self.key);
        self.states = states.into_iter().map(|state| state.unwrap_or_else(new)).collect();
        for (vm, state) in self.states.iter_mut().enumerate() {
            let times_the_mean = vms.weight(vm) * count as f64;
            state.uses = times_the_mean.clamp(1.0, USES_MAX).round() as u32;
            state.protected = 0;
        }
        for (disk, protected) in self.protected_of_disk.iter().enumerate() {
            if let Some(state) = vms.of_disk(disk).and_then(|vm| self.states.get_mut(vm)) {
                state.protected += protected;
            }
        }
        self.count_over();
    }

    /// They share so many blocks from now on.
    pub fn resize(&mut self, capacity: usize) {
        let before = std::mem::replace(&mut self.capacity, capacity).max(1);
        // What is to be given up now is not to be searched for.
        for state in self.states.iter_mut().filter(|_| capacity < before) {
            state.floor = (state.floor as f64 * capacity as f64 / before as f64) as usize;
        }
        self.next_look = self.now;
        self.count_over();
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
        self.count_over();
    }

    fn count_over(&mut self) {
        let (now, capacity) = (self.now, self.capacity as u64);
        let is_over = |state: &&State| {
            let is_idle = now - state.last_access > capacity;
            state.protected > state.floor || is_idle && state.protected > 0
        };
        // What was protected of a VM that has gone is nobody's.
        let (vms, states) = (&self.vms, self.states.len());
        let has_gone = |disk: usize| vms.of_disk(disk).is_none_or(|vm| vm >= states);
        let of_disks = self.protected_of_disk.iter().enumerate();
        let left = of_disks.filter(|(disk, protected)| **protected > 0 && has_gone(*disk)).count();
        self.over = self.states.iter().filter(is_over).count() + left;
    }

    fn state(&mut self, block: BlockId) -> Option<&mut State> {
        let vm = self.vms.of(block)?;
        self.states.get_mut(vm)
    }

    /// A block is protected from now on.
    pub fn count_in(&mut self, block: BlockId) {
        let disk = block.disk() as usize;
        if disk >= self.protected_of_disk.len() {
            self.protected_of_disk.resize(disk + 1, 0);
        }
        self.protected_of_disk[disk] += 1;
        if let Some(state) = self.state(block) {
            state.protected += 1;
            let comes_over = state.protected == state.floor + 1;
            self.over += usize::from(comes_over);
        }
    }

    /// A block is not protected any more.
    pub fn count_out(&mut self, block: BlockId) {
        self.protected_of_disk[block.disk() as usize] -= 1;
        if let Some(state) = self.state(block) {
            let was_over = state.protected == state.floor + 1;
            state.protected -= 1;
            // An idle one has been counted already, and is not twice.
            self.over = self.over.saturating_sub(usize::from(was_over));
        }
    }

    /// Whether one more block of its VM is to be protected: then its oldest one is not any more, if there are too
    /// many.
    pub fn has_room(&self, block: BlockId) -> bool {
        let state = self.active(block);
        state.is_some_and(|state| state.floor > 0 && state.protected <= state.floor)
    }

    /// Whether there may be protected blocks that are not to stay so.
    pub fn is_any_over(&self) -> bool {
        self.over > 0
    }

    /// Whether a block that is protected stays so.
    pub fn keeps(&self, block: BlockId) -> bool {
        self.active(block).is_some_and(|state| state.protected <= state.floor)
    }

    /// Its VM, unless that is idle: it has not accessed anything while the cache was accessed as often as it has
    /// blocks.
    fn active(&self, block: BlockId) -> Option<&State> {
        let state = self.states.get(self.vms.of(block)?)?;
        (self.now - state.last_access <= self.capacity as u64).then_some(state)
    }
}

impl State {
    fn new(now: u64, capacity_max: usize, key: u64) -> Self {
        Self {
            protected: 0,
            floor: 0,
            last_access: now,
            uses: 1,
            accesses: 0.0,
            hits: 0.0,
            curve: Curve::new(capacity_max, key),
        }
    }

    /// Its weight allows it so many blocks.
    fn look(&mut self, allowed: usize) {
        let promised = self.curve.hit_ratio(allowed);
        let ratio = self.hits / self.accesses.max(1.0);
        if ratio < promised {
            self.floor += allowed / RISE;
        } else if ratio > promised + MARGIN {
            self.floor = self.floor.saturating_sub(allowed / SINK);
        }
        let needed = (self.curve.enough(NEEDED, allowed) as f64 * SLACK) as usize;
        let used = (self.accesses * BLOCKS_PER_ACCESS) as usize;
        self.floor = self.floor.min(needed).min(used).min(allowed);
        self.curve.fade(FADE);
        self.hits *= FADE;
        self.accesses *= FADE;
    }
}

#[cfg(test)]
mod tests;
