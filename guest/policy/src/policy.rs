//! The seam between a file cache and what decides for it.

use std::fmt;
use std::str::FromStr;

use crate::{Access, Adaptive, FileId, Gdsf, Link, Lru, Multicache, S3Fifo};

/// What the cache is to do with a file that it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Write its changes to the shared storage. A `Drop` of it follows.
    WriteBack(FileId),
    /// Give its memory back. The policy does not count it any more.
    Drop(FileId),
}

/// Decides which files a cache holds.
///
/// Laws, for every sequence of calls: the files held are those of `used` calls that returned true,
/// without those that were dropped or forgotten since; `held_bytes` is the sum of their sizes and
/// never above the budget when a call returns.
pub trait Policy: Send {
    /// A file is opened. Returns whether it is to be held from now on (it may be already); what has
    /// to go for that is ordered.
    fn used(&mut self, access: &Access, orders: &mut Vec<Order>) -> bool;

    /// A file is gone, or has changed behind the cache: it is held no more, without an order.
    fn forget(&mut self, file: FileId);

    /// The cache may have so many bytes from now on (M_g of the paper).
    fn set_budget(&mut self, bytes: u64, orders: &mut Vec<Order>);

    /// A time epoch ends. Most policies have nothing to do then.
    fn epoch(&mut self, _orders: &mut Vec<Order>) {}

    /// Whether a file is held.
    fn holds(&self, file: FileId) -> bool;

    /// Bytes of the files held.
    fn held_bytes(&self) -> u64;
}

/// A policy by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyKind {
    /// Ours: what has served best of late.
    Default,
    /// The paper's rule.
    Multicache,
    /// What was used longest ago goes first.
    Lru,
    /// S3-FIFO, by bytes.
    S3Fifo,
    /// Greedy-dual size with frequencies.
    Gdsf,
}

impl PolicyKind {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Default, Self::Multicache, Self::Lru, Self::S3Fifo, Self::Gdsf];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Multicache => "multicache",
            Self::Lru => "lru",
            Self::S3Fifo => "s3fifo",
            Self::Gdsf => "gdsf",
        }
    }

    /// A policy of this kind for a cache of so many bytes, over a link whose misses cost what it
    /// says.
    pub fn build(self, bytes: u64, link: Link) -> Box<dyn Policy> {
        match self {
            Self::Default => Box::new(Adaptive::new(bytes, link)),
            Self::Multicache => Box::new(Multicache::new(bytes)),
            Self::Lru => Box::new(Lru::new(bytes)),
            Self::S3Fifo => Box::new(S3Fifo::new(bytes)),
            Self::Gdsf => Box::new(Gdsf::new(bytes, link)),
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for PolicyKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|kind| kind.name() == text).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|kind| kind.name()).collect();
            format!("no policy is called {text:?}; use one of {}", names.join(", "))
        })
    }
}
