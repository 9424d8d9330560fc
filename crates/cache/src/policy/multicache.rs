//! The rule of MultiCache (No and Park; S5.6): a sector is kept when p · u/Σu · v/Σv, its accesses times the
//! share of its VM of all vCPUs and of all memory, reaches a threshold, whether there is room or not. The
//! paper does not say what makes room; here it is the sector that was used longest ago. Its metadata tables are
//! replaced for space, too: counts of sectors that are not kept, or not any more, are remembered for a million
//! of them, or eight times as many as are kept.

use super::{Access, Outcome, Policy, VmShare};
use crate::entries::Entries;

/// How many sectors that are not kept are counted: in parts of the capacity, and at least.
const COUNTED: usize = 8;
const COUNTED_MIN: usize = 1 << 20;

const KEPT: usize = 0;
const COUNTED_ONLY: usize = 1;

/// How the share of a VM is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// As the paper writes it. With N equal VMs the product of shares is 1/N², so each of them needs N² times
    /// as many accesses as it would alone.
    Literal,
    /// Relative to the mean share: with equal VMs an access counts 1, however many there are.
    Relative,
}

/// Keeps what is used often enough by those who count enough.
#[derive(Debug)]
pub struct MultiCache {
    capacity: usize,
    threshold: f64,
    scale: Scale,
    counted_max: usize,
    entries: Entries<2>,
}

impl MultiCache {
    /// Keeps so many blocks, at least one, whose weight reaches `threshold`.
    pub fn new(capacity: usize, threshold: f64, scale: Scale) -> Self {
        let counted_max = (COUNTED * capacity).max(COUNTED_MIN);
        let capacity = capacity.max(1);
        Self { capacity, threshold, scale, counted_max, entries: Entries::new() }
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
    fn make_room(&mut self) {
        if self.entries.len(KEPT) == self.capacity
            && let Some(last) = self.entries.back(KEPT)
        {
            self.entries.move_to_front(last, COUNTED_ONLY);
        }
    }

    /// Forgets the counts of sectors that are not kept and have not been used for longest.
    fn bound_counted(&mut self) {
        while self.entries.len(COUNTED_ONLY) > self.counted_max
            && let Some(last) = self.entries.back(COUNTED_ONLY)
        {
            self.entries.remove(last);
        }
    }
}

impl Policy for MultiCache {
    fn access(&mut self, access: Access) -> Outcome {
        let found = self.entries.find(access.block);
        let id =
            found.map_or_else(|| self.entries.insert(access.block, COUNTED_ONLY), |(id, _)| id);
        let count = self.entries.count(id);
        *count = count.saturating_add(1);
        let accesses = *count;
        if let Some((_, KEPT)) = found {
            self.entries.move_to_front(id, KEPT);
            return Outcome::Hit;
        }
        let outcome = if self.keeps(accesses, access.share) {
            self.make_room();
            self.entries.move_to_front(id, KEPT);
            Outcome::Inserted
        } else {
            self.entries.move_to_front(id, COUNTED_ONLY);
            Outcome::Refused
        };
        self.bound_counted();
        outcome
    }

    fn len(&self) -> usize {
        self.entries.len(KEPT)
    }
}
