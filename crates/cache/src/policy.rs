//! What a policy is asked, and what it answers.

pub mod adaptive;
pub mod floors;
pub mod lru;
pub mod multicache;
pub mod s3fifo;

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;

use self::adaptive::Adaptive;
use self::floors::Floors;
use self::lru::Lru;
use self::multicache::{MultiCache, Rule};
use self::s3fifo::{S3Fifo, Shape};
use crate::names::{BlockId, Place};
use crate::vms::Vms;

/// A block that is kept, or was until now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The block.
    pub block: BlockId,
    /// Where.
    pub place: Place,
}

/// What becomes of the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The cache keeps it already.
    Hit(Place),
    /// The cache takes it in, and gives another one up if it is full.
    Inserted(Place),
    /// The cache does not take it.
    Refused,
}

/// Decides which blocks are kept.
pub trait Policy: Send {
    /// A block is read or written. What is given up for it is appended to `evicted`; while more is
    /// kept than may be (after [`resize`](Self::resize)), a few blocks at a time.
    fn access(&mut self, block: BlockId, evicted: &mut Vec<Kept>) -> Outcome;

    /// The same of one that is written, for policies that count reads and writes apart.
    fn write(&mut self, block: BlockId, evicted: &mut Vec<Kept>) -> Outcome {
        self.access(block, evicted)
    }

    /// Where a block is kept, if it is.
    fn find(&self, block: BlockId) -> Option<Place>;

    /// A block will be asked for: brings near what [`guess`](Self::guess) looks at.
    fn prefetch(&self, block: BlockId);

    /// A block will be asked for: brings near what is remembered of it. Returns where that is, most
    /// probably.
    fn guess(&self, block: BlockId) -> Option<Place>;

    /// A block is not to be kept any more, nor remembered: its content is gone. Returns where it
    /// was kept.
    fn forget(&mut self, block: BlockId) -> Option<Place>;

    /// Keeps at most so many blocks from now on, not more than it was made for. Gives up to
    /// `evictions_max` of them up for that now; the others go with the next calls of this, and with
    /// accesses.
    fn resize(&mut self, capacity: usize, evictions_max: usize, evicted: &mut Vec<Kept>);

    /// These are the VMs from now on. Policies that weigh none of them do nothing.
    fn set_vms(&mut self, _vms: &Arc<Vms>) {}

    /// So much time has passed since the last call. Policies that know no time do nothing.
    fn pass(&mut self, _time: Duration) {}

    /// What each VM has, if the policy weighs several.
    fn floors(&self) -> Option<&Floors> {
        None
    }

    /// How many blocks are kept.
    fn len(&self) -> usize;

    /// Whether none is.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many blocks are remembered that are not kept.
    fn ghosts(&self) -> usize {
        0
    }

    /// How many blocks are kept or remembered at most.
    fn places(&self) -> usize;
}

/// The policies, by name. Three are there to be compared with: a daemon has no use for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum PolicyKind {
    /// What is read again soon, and by which VM, as the cache learns it
    #[default]
    #[value(name = "default")]
    Adaptive,
    /// Accesses against a threshold, the first rule of MultiCache's paper
    #[value(name = "multicache-count")]
    MultiCacheCount,
    /// Accesses times the VM's weight against a threshold, its second rule; also called multicache
    #[value(name = "multicache-weight", alias = "multicache")]
    MultiCache,
    /// The same with a threshold that does not shrink with the number of VMs.
    #[value(skip)]
    MultiCacheRelative,
    /// Least recently used.
    #[value(skip)]
    Lru,
    /// S3-FIFO.
    #[value(skip)]
    S3Fifo,
}

/// Most blocks that one access gives up: the others of the host wait meanwhile.
const EVICTIONS_MAX: usize = 4;

/// Weight from which MultiCache keeps a block, unless something else is asked for.
pub const FREQ_THRESHOLD: f64 = 2.0;

impl PolicyKind {
    /// Every policy.
    pub const ALL: [Self; 6] = [
        Self::MultiCacheCount,
        Self::MultiCache,
        Self::MultiCacheRelative,
        Self::Lru,
        Self::S3Fifo,
        Self::Adaptive,
    ];

    /// Its name in options and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::MultiCacheCount => "multicache-count",
            Self::MultiCache => "multicache-weight",
            Self::MultiCacheRelative => "multicache-relative",
            Self::Lru => "lru",
            Self::S3Fifo => "s3fifo",
            Self::Adaptive => "default",
        }
    }

    /// Whether it is a rule of MultiCache, which has a threshold.
    pub const fn has_threshold(self) -> bool {
        matches!(self, Self::MultiCacheCount | Self::MultiCache | Self::MultiCacheRelative)
    }

    /// A policy that keeps so many blocks; `threshold` is MultiCache's. `key` decides which blocks
    /// the default one takes for a sample: no guest is to know that.
    pub fn build(self, capacity: usize, threshold: f64, key: u64) -> Box<dyn Policy> {
        match self {
            Self::MultiCacheCount => Box::new(MultiCache::new(capacity, threshold, Rule::Count)),
            Self::MultiCache => Box::new(MultiCache::new(capacity, threshold, Rule::Weight)),
            Self::MultiCacheRelative => {
                Box::new(MultiCache::new(capacity, threshold, Rule::Relative))
            }
            Self::Lru => Box::new(Lru::new(capacity)),
            Self::S3Fifo => Box::new(S3Fifo::new(capacity, Shape::PAPER)),
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
