//! The rules of MultiCache (No and Park; S5.6). The paper has two: a sector is kept if its accesses
//! p reach FREQ_THRESHOLD; and, in its Definition 1, if p · u/Σu · v/Σv does, that is its accesses
//! times its VM's shares of all vCPUs and of all memory. Either holds whether there is room or not.
//! Accesses are counted in the [`Repository`]. The paper does not say what is evicted; here it is
//! the least recently used sector.

mod repository;

use std::sync::Arc;

use self::repository::Repository;
use super::lru::Lru;
use super::{Kept, Outcome, Policy};
use crate::names::{BlockId, Place};
use crate::vms::{VmShare, Vms};

/// Least number of chunks counted in each table of the repository; otherwise as many as blocks are
/// kept.
const CHUNKS_MIN: usize = 1 << 17;

/// The value compared with the threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Accesses.
    Count,
    /// Weighted accesses, as in the paper. With N equal VMs the product of shares is 1/N², so each
    /// of them needs N² times as many accesses as it would alone.
    Weight,
    /// Weighted accesses relative to the mean share: with equal VMs an access counts 1, whatever
    /// their number.
    Relative,
}

/// Keeps blocks whose value reaches the threshold.
#[derive(Debug)]
pub struct MultiCache {
    threshold: f64,
    rule: Rule,
    vms: Arc<Vms>,
    repository: Repository,
    /// The kept blocks.
    kept: Lru,
}

impl MultiCache {
    /// Makes a policy that keeps up to `capacity` blocks, at least one, whose value reaches
    /// `threshold`.
    pub fn new(capacity: usize, threshold: f64, rule: Rule) -> Self {
        let repository = Repository::new(capacity.max(CHUNKS_MIN));
        Self { threshold, rule, vms: Arc::default(), repository, kept: Lru::new(capacity) }
    }

    fn value(&self, accesses: u32, share: VmShare) -> f64 {
        let (accesses, vms) = (f64::from(accesses), f64::from(share.vms));
        let weight = accesses * share.cpus * share.memory;
        match self.rule {
            Rule::Count => accesses,
            Rule::Weight => weight,
            Rule::Relative => weight * vms * vms,
        }
    }

    /// Processes an access; `accesses` is the block's count with it.
    fn accessed(&mut self, block: BlockId, accesses: u32, evicted: &mut Vec<Kept>) -> Outcome {
        if let Some(place) = self.kept.touch(block) {
            return Outcome::Hit(place);
        }
        if self.value(accesses, self.vms.share_of(block)) < self.threshold {
            return Outcome::Refused;
        }
        Outcome::Inserted(self.kept.take_in(block, evicted))
    }
}

impl Policy for MultiCache {
    fn access(&mut self, block: BlockId, evicted: &mut Vec<Kept>) -> Outcome {
        let accesses = self.repository.read(block);
        self.accessed(block, accesses, evicted)
    }

    fn write(&mut self, block: BlockId, evicted: &mut Vec<Kept>) -> Outcome {
        let accesses = self.repository.write(block);
        self.accessed(block, accesses, evicted)
    }

    fn find(&self, block: BlockId) -> Option<Place> {
        self.kept.find(block)
    }

    fn prefetch(&self, block: BlockId) {
        self.kept.prefetch(block);
        self.repository.prefetch(block);
    }

    fn guess(&self, block: BlockId) -> Option<Place> {
        self.kept.guess(block)
    }

    fn forget(&mut self, block: BlockId) -> Option<Place> {
        self.repository.forget(block);
        self.kept.forget(block)
    }

    fn resize(&mut self, capacity: usize, evictions_max: usize, evicted: &mut Vec<Kept>) {
        self.kept.resize(capacity, evictions_max, evicted);
    }

    fn set_vms(&mut self, vms: &Arc<Vms>) {
        self.vms = Arc::clone(vms);
    }

    fn len(&self) -> usize {
        self.kept.len()
    }

    fn ghosts(&self) -> usize {
        self.repository.len().saturating_sub(self.len())
    }

    fn places(&self) -> usize {
        self.kept.places()
    }
}
