//! The rule of MultiCache (No and Park; S5.6): a sector is kept when p · u/Σu · v/Σv, its accesses
//! times the share of its VM of all vCPUs and of all memory, reaches a threshold, whether there is
//! room or not. The paper does not say what makes room; here it is the sector that was used longest
//! ago. Its metadata tables are replaced for space, too: counts of sectors that are not kept, or
//! not any more, are remembered for a million of them, or eight times as many as are kept.

use std::sync::Arc;

use super::{EVICTIONS_MAX, Kept, Outcome, Policy};
use crate::entries::Entries;
use crate::names::{BlockId, Place};
use crate::vms::{VmShare, Vms};

/// How many sectors that are not kept are counted: in parts of the capacity, and at least.
const COUNTED: usize = 8;
const COUNTED_MIN: usize = 1 << 20;

/// Places are numbered by 32 bits, and one number is none.
const PLACES_MAX: usize = (1 << 32) - 8;

const KEPT: usize = 0;
const COUNTED_ONLY: usize = 1;

/// How the share of a VM is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// As the paper writes it. With N equal VMs the product of shares is 1/N², so each of them
    /// needs N² times as many accesses as it would alone.
    Literal,
    /// Relative to the mean share: with equal VMs an access counts 1, however many there are.
    Relative,
}

/// Keeps what is used often enough by those who count enough.
#[derive(Debug)]
pub struct MultiCache {
    capacity: usize,
    capacity_max: usize,
    threshold: f64,
    scale: Scale,
    vms: Arc<Vms>,
    counted_max: usize,
    entries: Entries,
}

impl MultiCache {
    /// Keeps so many blocks, at least one, whose weight reaches `threshold`.
    pub fn new(capacity: usize, threshold: f64, scale: Scale) -> Self {
        let capacity = capacity.max(1);
        let counted_max = (COUNTED * capacity).max(COUNTED_MIN).min(PLACES_MAX - capacity);
        let entries = Entries::with_capacity(capacity + counted_max + 1, 2);
        Self {
            capacity,
            capacity_max: capacity,
            threshold,
            scale,
            vms: Arc::default(),
            counted_max,
            entries,
        }
    }

    fn weight(&self, accesses: u32, share: VmShare) -> f64 {
        let vms = f64::from(share.vms);
        let weight = f64::from(accesses) * share.cpus * share.memory;
        if self.scale == Scale::Relative { weight * vms * vms } else { weight }
    }

    fn keeps(&self, accesses: u32, share: VmShare) -> bool {
        self.weight(accesses, share) >= self.threshold
    }

    /// Makes room for one more sector to be kept. The one that goes is still counted.
    fn make_room(&mut self, evicted: &mut Vec<Kept>) {
        for _ in 0..EVICTIONS_MAX {
            if self.entries.len(KEPT) >= self.capacity {
                self.evict(evicted);
            }
        }
    }

    fn evict(&mut self, evicted: &mut Vec<Kept>) {
        if let Some(place) = self.entries.back(KEPT) {
            evicted.push(Kept { block: self.entries.block(place), place });
            self.entries.move_to_front(place, COUNTED_ONLY);
        }
    }

    /// Forgets the counts of sectors that are not kept and have not been used for longest.
    fn bound_counted(&mut self) {
        for _ in 0..EVICTIONS_MAX {
            if self.entries.len(COUNTED_ONLY) > self.counted_max
                && let Some(last) = self.entries.back(COUNTED_ONLY)
            {
                self.entries.remove(last);
            }
        }
    }
}

impl Policy for MultiCache {
    fn access(&mut self, block: BlockId, evicted: &mut Vec<Kept>) -> Outcome {
        let found = self.entries.find(block);
        let place =
            found.map_or_else(|| self.entries.insert(block, COUNTED_ONLY), |(place, _)| place);
        let accesses = self.entries.count(place) + 1;
        self.entries.set_count(place, accesses);
        if let Some((_, KEPT)) = found {
            self.entries.move_to_front(place, KEPT);
            return Outcome::Hit(place);
        }
        let outcome = if self.keeps(accesses, self.vms.share_of(block)) {
            self.make_room(evicted);
            self.entries.move_to_front(place, KEPT);
            Outcome::Inserted(place)
        } else {
            self.entries.move_to_front(place, COUNTED_ONLY);
            Outcome::Refused
        };
        self.bound_counted();
        outcome
    }

    fn find(&self, block: BlockId) -> Option<Place> {
        let (place, queue) = self.entries.find(block)?;
        (queue == KEPT).then_some(place)
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
        (queue == KEPT).then_some(place)
    }

    fn resize(&mut self, capacity: usize, evictions_max: usize, evicted: &mut Vec<Kept>) {
        self.capacity = capacity.clamp(1, self.capacity_max);
        let over = self.len().saturating_sub(self.capacity);
        (0..over.min(evictions_max)).for_each(|_| self.evict(evicted));
        self.bound_counted();
    }

    fn set_vms(&mut self, vms: &Arc<Vms>) {
        self.vms = Arc::clone(vms);
    }

    fn len(&self) -> usize {
        self.entries.len(KEPT)
    }

    fn ghosts(&self) -> usize {
        self.entries.len(COUNTED_ONLY)
    }

    fn places(&self) -> usize {
        // One more while a block is counted before another one is forgotten.
        self.capacity_max + self.counted_max + 1
    }
}
