//! S3-FIFO (Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023), with
//! parameters ([`Shape`]).
//!
//! New blocks enter a small queue. At its end, blocks used again go on to the main queue, where a
//! use gives a block another turn; others are evicted and remembered as ghosts. A block that comes
//! back while it is a ghost goes to the main queue at once.
//!
//! An extension ([`settling`]): what the small queue has above its part once the cache is full goes
//! on to the main queue. By the rule above its oldest blocks would be evicted, and a loop that is
//! longer than the cache would not be hit until ghosts have come back.
//!
//! An extension for several VMs ([`floors`](super::floors)): a block at the end of a queue that its
//! VM must not lose goes to that VM's queue of protected blocks. When the VM takes in more than its
//! bounds allow, the oldest of these is evicted first.

mod settling;
mod shape;

use std::sync::Arc;
use std::time::Duration;

use flowstone_block::mutated;

use self::settling::{MOVES_MAX, Settling};
pub use self::shape::Shape;
use super::floors::Floors;
use super::{EVICTIONS_MAX, Kept, Outcome, Policy};
use crate::entries::{Entries, Time};
use crate::names::{BlockId, Place};
use crate::vms::Vms;

/// Blocks that get another turn before one is evicted whatever its uses: all of them may have been
/// used.
const TURNS_MAX: usize = 64;
/// Protected blocks of a VM that are checked, per eviction, for one that is not to be protected any
/// more.
const PROTECTED_LOOKS: usize = 8;
/// Blocks at the end of the main queue that are checked for one that is older than a ghost.
const LOOKS: usize = 4;
/// Greatest count of uses.
const COUNT_MAX: u32 = 3;

const SMALL: usize = 0;
const MAIN: usize = 1;
const GHOSTS: usize = 2;
/// First of the queues of protected blocks, one per VM: its blocks that reached the end of a queue
/// and must not be lost, the oldest at the back.
const PROTECTED: usize = 3;

/// An S3-FIFO cache.
#[derive(Debug)]
pub struct S3Fifo {
    capacity: usize,
    capacity_max: usize,
    places: usize,
    shape: Shape,
    /// Whether blocks of the small queue above its part go on to the main queue.
    settling: Settling,
    floors: Floors,
    entries: Entries,
    /// Blocks in queues of protected ones.
    protected: usize,
    /// The queue of protected blocks that is checked next.
    next: usize,
}

impl S3Fifo {
    /// Makes a policy that keeps up to `capacity` blocks, at least two.
    pub fn new(capacity: usize, shape: Shape) -> Self {
        let capacity = capacity.max(2);
        let ghosts = (capacity as f64 * shape.ghosts) as usize;
        // One more while a ghost is added before another one is dropped.
        let places = capacity + ghosts + 1;
        Self {
            capacity,
            capacity_max: capacity,
            places,
            shape,
            settling: Settling::new(capacity),
            floors: Floors::default(),
            entries: Entries::with_capacity(places, PROTECTED),
            protected: 0,
            next: PROTECTED,
        }
    }

    /// Adds floors for VMs, with the key of their samples.
    pub fn with_floors(self, key: u64) -> Self {
        Self { floors: Floors::new(key), ..self }
    }

    /// Makes the policy as its authors have it.
    pub fn published(capacity: usize) -> Self {
        Self { settling: Settling::never(), ..Self::new(capacity, Shape::PAPER) }
    }

    /// Changes the shape. No block is evicted for it.
    pub fn reshape(&mut self, shape: Shape) {
        self.settling.is_due |= self.shape != shape;
        self.shape = shape;
    }

    /// Returns whether it keeps as many blocks as it may.
    pub fn is_full(&self) -> bool {
        self.len() >= self.capacity
    }

    /// Sets the VMs: blocks above their parts are evicted first, and uses by heavy VMs count more.
    /// An extension to S3-FIFO.
    pub fn weigh(&mut self, vms: &Arc<Vms>) {
        self.floors.set(vms, self.capacity, self.capacity_max);
        self.entries.have_queues(PROTECTED + vms.len());
    }

    /// Returns whether the block at the end of the main queue was used before then. Blocks there
    /// that have been used, or used later, get another turn: they hide older ones.
    fn main_is_older(&mut self, then: Time) -> bool {
        for _ in 0..LOOKS {
            let Some(place) = self.entries.back(MAIN) else { return true };
            let uses = self.entries.count(place);
            if uses == 0 && self.entries.last_use(place).is_before(then) {
                return true;
            }
            self.entries.set_count(place, uses.saturating_sub(1));
            self.entries.move_to_front(place, MAIN);
        }
        false
    }

    fn part(&self, share: f64) -> usize {
        (self.capacity as f64 * share) as usize
    }

    /// Returns the count of a block's uses.
    #[cfg(test)]
    pub fn uses(&mut self, block: BlockId) -> Option<u32> {
        self.entries.find(block).map(|(place, _)| self.entries.count(place))
    }

    /// Evicts a block, for one more of the VM `by`.
    fn evict(&mut self, by: Option<usize>) -> Option<Kept> {
        if let Some(gone) = self.evict_protected(by) {
            return Some(gone);
        }
        if self.settling.is_due {
            self.settle();
        }
        for _ in 0..TURNS_MAX {
            let from_small = !self.settling.is_due && self.entries.len(SMALL) >= self.small_part();
            let Some(place) = self.back(from_small) else { break };
            let gone = match self.protect(place, by) {
                Some(queue) => self.evict_from(queue, by, 1),
                None => self.end_of_queue(place),
            };
            if gone.is_some() {
                return gone;
            }
        }
        let protected = || (PROTECTED..self.entries.queues()).find_map(|it| self.entries.back(it));
        let place = self.back(false).or_else(protected)?;
        self.entries.set_count(place, 0);
        self.end_of_queue(place)
    }

    /// Returns the size that the small queue is to have.
    fn small_part(&self) -> usize {
        let shared = self.capacity.saturating_sub(self.protected);
        ((shared as f64 * self.shape.small) as usize).max(1)
    }

    /// Moves some of the blocks of the small queue above its part to the main queue.
    fn settle(&mut self) {
        let part = self.small_part();
        for _ in 0..MOVES_MAX {
            match self.entries.back(SMALL) {
                Some(oldest) if self.entries.len(SMALL) > part => {
                    self.entries.move_to_front(oldest, MAIN);
                }
                _ => self.settling.is_due = false,
            }
        }
    }

    /// Evicts a protected block that its VM may lose: of the VM `by`, or of another one, in turn.
    fn evict_protected(&mut self, by: Option<usize>) -> Option<Kept> {
        if self.protected == 0 {
            return None;
        }
        self.next = if self.next + 1 < self.entries.queues() { self.next + 1 } else { PROTECTED };
        let own = by.map(|vm| self.queue_of(vm));
        [own, Some(self.next)]
            .into_iter()
            .flatten()
            .find_map(|queue| self.evict_from(queue, by, PROTECTED_LOOKS))
    }

    /// The same, from one queue of protected blocks, after at most `looks` checks.
    fn evict_from(&mut self, queue: usize, by: Option<usize>, looks: usize) -> Option<Kept> {
        for _ in 0..looks {
            let place = self.entries.back(queue)?;
            let block = self.entries.block(place);
            if !self.keeps(block, by) {
                if let Some(gone) = self.end_of_queue(place) {
                    return Some(gone);
                }
                continue;
            }
            let own = self.floors.vm(block).map_or(queue, |vm| self.queue_of(vm));
            if own == queue {
                return None;
            }
            // VM numbers were different when it was moved to this queue.
            self.entries.move_to_front(place, own);
        }
        None
    }

    /// Returns whether a block stays when one is evicted for one more of the VM `by`.
    fn keeps(&self, block: BlockId, by: Option<usize>) -> bool {
        let vm = self.floors.vm(block);
        let protected = |vm| self.entries.len(self.queue_of(vm));
        let of_none = mutated("cache.floors.what-is-nobodys-stays", false, true);
        vm.map_or(of_none, |vm| self.floors.keeps(vm, protected(vm), by))
    }

    /// Returns the queue of a VM's protected blocks. VMs beyond the most queues share the last one.
    fn queue_of(&self, vm: usize) -> usize {
        (PROTECTED + vm).min(self.entries.queues() - 1)
    }

    /// Protects a block at the end of its queue that would be evicted, if its VM must not lose it,
    /// or has older protected ones to lose instead. Returns the queue to which it was moved.
    fn protect(&mut self, place: Place, by: Option<usize>) -> Option<usize> {
        let uses_enough = if self.entries.queue(place) == SMALL { self.shape.promote } else { 1 };
        if self.entries.count(place) >= uses_enough {
            return None;
        }
        let block = self.entries.block(place);
        let queue = self.queue_of(self.floors.vm(block)?);
        if self.entries.len(queue) == 0 && !self.keeps(block, by) {
            return None;
        }
        self.protected += 1;
        self.entries.move_to_front(place, queue);
        Some(queue)
    }

    /// Returns the block at the back of one queue, or of the other one if that is empty.
    fn back(&self, from_small: bool) -> Option<Place> {
        let (small, main) = (self.entries.back(SMALL), self.entries.back(MAIN));
        if from_small { small.or(main) } else { main.or(small) }
    }

    /// Processes a block at the end of its queue. Returns it if it is evicted.
    fn end_of_queue(&mut self, place: Place) -> Option<Kept> {
        match self.entries.queue(place) {
            MAIN => self.end_of_main(place),
            SMALL => self.end_of_small(place),
            _ => {
                self.protected -= 1;
                self.end_of_small(place)
            }
        }
    }

    /// The same for the small queue and for protected blocks.
    fn end_of_small(&mut self, place: Place) -> Option<Kept> {
        let uses = self.entries.count(place);
        self.entries.set_count(place, 0);
        if uses >= self.shape.promote {
            self.entries.move_to_front(place, MAIN);
            return None;
        }
        let gone = Kept { block: self.entries.block(place), place };
        self.floors.count_out(gone.block);
        self.entries.move_to_front(place, GHOSTS);
        self.bound_ghosts();
        Some(gone)
    }

    fn bound_ghosts(&mut self) {
        for _ in 0..EVICTIONS_MAX {
            if self.entries.len(GHOSTS) > self.part(self.shape.ghosts)
                && let Some(oldest) = self.entries.back(GHOSTS)
            {
                self.entries.remove(oldest);
            }
        }
    }

    /// The same for the main queue.
    fn end_of_main(&mut self, place: Place) -> Option<Kept> {
        let uses = self.entries.count(place);
        if uses > 0 {
            self.entries.set_count(place, uses - 1);
            self.entries.move_to_front(place, MAIN);
            return None;
        }
        let gone = Kept { block: self.entries.block(place), place };
        self.floors.count_out(gone.block);
        self.entries.remove(place);
        Some(gone)
    }
}

impl Policy for S3Fifo {
    fn access(&mut self, block: BlockId, evicted: &mut Vec<Kept>) -> Outcome {
        let found = self.entries.find(block);
        let is_hit = found.is_some_and(|(_, queue)| queue != GHOSTS);
        let uses = self.floors.access(block, is_hit);
        let queue = match found {
            Some((ghost, GHOSTS)) => {
                let then = self.entries.last_use(ghost);
                // Removed first, so that making room does not drop it.
                self.entries.remove(ghost);
                if self.shape.by_recency && !self.main_is_older(then) { SMALL } else { MAIN }
            }
            Some((place, _)) => {
                let uses = (self.entries.count(place) + uses).min(COUNT_MAX * uses);
                self.entries.set_count(place, uses);
                self.entries.touch(place);
                return Outcome::Hit(place);
            }
            None => SMALL,
        };
        let by = self.floors.vm(block);
        for _ in 0..EVICTIONS_MAX {
            if self.is_full() {
                evicted.extend(self.evict(by));
            }
        }
        self.floors.count_in(block);
        Outcome::Inserted(self.entries.insert(block, queue))
    }

    fn find(&self, block: BlockId) -> Option<Place> {
        let (place, queue) = self.entries.find(block)?;
        (queue != GHOSTS).then_some(place)
    }

    fn prefetch(&self, block: BlockId) {
        self.entries.prefetch(block);
    }

    fn guess(&self, block: BlockId) -> Option<Place> {
        self.entries.guess(block)
    }

    fn forget(&mut self, block: BlockId) -> Option<Place> {
        let (place, queue) = self.entries.find(block)?;
        self.entries.remove(place);
        if queue == GHOSTS {
            return None;
        }
        self.floors.count_out(block);
        self.protected -= usize::from(queue >= PROTECTED);
        Some(place)
    }

    fn resize(&mut self, capacity: usize, evictions_max: usize, evicted: &mut Vec<Kept>) {
        let capacity = capacity.clamp(2, self.capacity_max);
        let before = std::mem::replace(&mut self.capacity, capacity);
        self.settling.resized(before, self.capacity, self.entries.inserted());
        self.floors.resize(self.capacity);
        let over = self.len().saturating_sub(self.capacity);
        for _ in 0..over.min(evictions_max) {
            evicted.extend(self.evict(None));
        }
        self.bound_ghosts();
    }

    fn len(&self) -> usize {
        self.entries.len(SMALL) + self.entries.len(MAIN) + self.protected
    }

    fn pass(&mut self, time: Duration) {
        self.floors.pass(time);
    }

    fn floors(&self) -> Option<&Floors> {
        Some(&self.floors).filter(|floors| floors.are_shared())
    }

    fn ghosts(&self) -> usize {
        self.entries.len(GHOSTS)
    }

    fn places(&self) -> usize {
        self.places
    }
}
