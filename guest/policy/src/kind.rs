//! The policies by their names.

use std::str::FromStr;

use crate::{Adaptive, Gdsf, Link, Multicache, Policy, S3Fifo};

/// A policy by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyKind {
    /// Our own: follows the policy that has saved most time recently.
    Default,
    /// The paper's rule.
    Multicache,
    /// Least recently used.
    Lru,
    /// S3-FIFO, by bytes.
    S3Fifo,
    /// Greedy-dual size with frequencies.
    Gdsf,
}

impl PolicyKind {
    /// Every kind.
    pub const ALL: [Self; 5] =
        [Self::Default, Self::Multicache, Self::Lru, Self::S3Fifo, Self::Gdsf];

    /// Returns its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Multicache => "multicache",
            Self::Lru => "lru",
            Self::S3Fifo => "s3fifo",
            Self::Gdsf => "gdsf",
        }
    }

    /// Makes a policy of this kind for a cache of `bytes` bytes over a link.
    pub fn build(self, bytes: u64, link: Link) -> Box<dyn Policy> {
        match self {
            Self::Default => Box::new(Adaptive::new(bytes, link)),
            Self::Multicache => Box::new(Multicache::new(bytes)),
            Self::Lru => Box::new(Gdsf::lru(bytes)),
            Self::S3Fifo => Box::new(S3Fifo::new(bytes)),
            Self::Gdsf => Box::new(Gdsf::new(bytes, link)),
        }
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
