//! The interface of replacement policies.

pub mod adaptive;
pub mod floors;
pub mod lru;
pub mod multicache;
pub mod s3fifo;

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use flowstone_block::named;

use self::adaptive::Adaptive;
use self::floors::Floors;
use self::lru::Lru;
use self::multicache::{MultiCache, Rule};
use self::s3fifo::S3Fifo;
use crate::names::{BlockId, Place};
use crate::vms::Vms;

/// A block that is kept, or was until now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The block.
    pub block: BlockId,
    /// Its place.
    pub place: Place,
}

/// Result of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The block was kept already.
    Hit(Place),
    /// The block is taken in; another one is evicted if the cache is full.
    Inserted(Place),
    /// The block is not taken in.
    Refused,
}

/// A replacement policy: decides which blocks are kept.
pub trait Policy: Send {
    /// Processes a read or write of a block. Blocks evicted for it are appended to `evicted`: a few
    /// per call while more are kept than allowed (after [`resize`](Self::resize)).
    fn access(&mut self, block: BlockId, evicted: &mut Vec<Kept>) -> Outcome;

    /// The same for a write, for policies that count reads and writes separately.
    fn write(&mut self, block: BlockId, evicted: &mut Vec<Kept>) -> Outcome {
        self.access(block, evicted)
    }

    /// Returns the place of a block, if it is kept.
    fn find(&self, block: BlockId) -> Option<Place>;

    /// Prefetches what [`guess`](Self::guess) reads for a block.
    fn prefetch(&self, block: BlockId);

    /// Returns the probable place of a block, and prefetches its record.
    fn guess(&self, block: BlockId) -> Option<Place>;

    /// Drops a block and its ghost: its content is gone. Returns its place if it was kept.
    fn forget(&mut self, block: BlockId) -> Option<Place>;

    /// Sets the most blocks to keep, limited to the size at construction. Evicts up to
    /// `evictions_max` now; the rest is evicted by further calls, and by accesses.
    fn resize(&mut self, capacity: usize, evictions_max: usize, evicted: &mut Vec<Kept>);

    /// Sets the VMs. Ignored by policies that do not weigh VMs.
    fn set_vms(&mut self, _vms: &Arc<Vms>) {}

    /// Reports the time since the last call. Ignored by policies without a notion of time.
    fn pass(&mut self, _time: Duration) {}

    /// Returns the bounds of each VM, if the policy weighs several.
    fn floors(&self) -> Option<&Floors> {
        None
    }

    /// Returns the number of blocks kept.
    fn len(&self) -> usize;

    /// Returns whether no block is kept.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of ghosts: blocks remembered but not kept.
    fn ghosts(&self) -> usize {
        0
    }

    /// Returns the most blocks that are kept or remembered.
    fn places(&self) -> usize;
}

named! {
    /// The policies by name, in options and reports. Three exist for comparison only and have no
    /// use in a daemon.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
    pub enum PolicyKind {
        /// Learns which blocks are soon read again, and by which VM
        #[default]
        #[value(name = "default")]
        Adaptive = "default",
        /// Keeps blocks whose accesses reach a threshold: the first rule of the MultiCache paper
        #[value(name = "multicache-count")]
        MultiCacheCount = "multicache-count",
        /// Keeps blocks whose accesses times the VM's weight reach a threshold: the second rule of
        /// the paper; alias multicache
        #[value(name = "multicache-weight", alias = "multicache")]
        MultiCache = "multicache-weight",
        /// The same with a threshold that does not shrink with the number of VMs.
        #[value(skip)]
        MultiCacheRelative = "multicache-relative",
        /// Least recently used.
        #[value(skip)]
        Lru = "lru",
        /// S3-FIFO.
        #[value(skip)]
        S3Fifo = "s3fifo",
    }
}

/// Most blocks evicted by one access: all other queues wait meanwhile.
const EVICTIONS_MAX: usize = 4;

/// Default threshold of MultiCache.
pub const FREQ_THRESHOLD: f64 = 2.0;

impl PolicyKind {
    /// Returns whether it is a rule of MultiCache, which has a threshold.
    pub const fn has_threshold(self) -> bool {
        matches!(self, Self::MultiCacheCount | Self::MultiCache | Self::MultiCacheRelative)
    }

    /// Makes a policy that keeps up to `capacity` blocks; `threshold` is MultiCache's. `key`
    /// selects the sample of the default policy; guests must not know it.
    pub fn build(self, capacity: usize, threshold: f64, key: u64) -> Box<dyn Policy> {
        match self {
            Self::MultiCacheCount => Box::new(MultiCache::new(capacity, threshold, Rule::Count)),
            Self::MultiCache => Box::new(MultiCache::new(capacity, threshold, Rule::Weight)),
            Self::MultiCacheRelative => {
                Box::new(MultiCache::new(capacity, threshold, Rule::Relative))
            }
            Self::Lru => Box::new(Lru::new(capacity)),
            Self::S3Fifo => Box::new(S3Fifo::published(capacity)),
            Self::Adaptive => Box::new(Adaptive::new(capacity, key)),
        }
    }
}

impl FromStr for PolicyKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = if text == "multicache" { "multicache-weight" } else { text };
        Self::ALL.into_iter().find(|kind| kind.name() == text).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("`{text}` is not a cache policy; use one of {names}")
        })
    }
}

#[cfg(test)]
mod fairness;
#[cfg(test)]
mod tests;
