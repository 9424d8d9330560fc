//! The cache that all disks share, as the command line and the configuration name it.

use std::str::FromStr;

use flowstone_block::{format_size, parse_size};
use flowstone_cache::Cache;

use flowstone_memory::sizer::Limits;

pub use flowstone_cache::PolicyKind;

/// How large a cache may become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSize(pub u64);

/// A cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheConfig {
    /// Between how much and how much it may take for data, as the host's memory allows.
    pub limits: Limits,
    /// Decides what is kept.
    pub policy: PolicyKind,
}

impl CacheConfig {
    /// A cache of this size, which becomes no smaller than `min`, or an eighth of it.
    pub fn new(
        size: CacheSize,
        min: Option<CacheSize>,
        policy: PolicyKind,
    ) -> Result<Self, String> {
        let min = min.map_or((size.0 / 8).max(Cache::BYTES_MIN), |min| min.0);
        if min > size.0 {
            return Err("its smallest size is larger than its largest".into());
        }
        Ok(Self { limits: Limits { min, max: size.0 }, policy })
    }
}

impl FromStr for CacheSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bytes = parse_size(text)?;
        let (min, max) = (Cache::BYTES_MIN, Cache::BYTES_MAX);
        if (min..=max).contains(&bytes) {
            Ok(Self(bytes))
        } else {
            let (min, max) = (format_size(min), format_size(max));
            Err(format!("a cache of {text}; use a size from {min} to {max}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_has_a_size_that_makes_sense() {
        assert_eq!("1G".parse(), Ok(CacheSize(1 << 30)));
        for text in ["0", "4K", "5T", "much"] {
            assert!(text.parse::<CacheSize>().is_err(), "{text} was accepted");
        }
    }
}
