//! Command-line configuration of a cache.

#![allow(rustdoc::broken_intra_doc_links, reason = "in help, brackets mean optional")]

use std::io;
use std::str::FromStr;

use clap::Args;
use flowstone_block::{format_size, parse_size};

use crate::{Cache, FREQ_THRESHOLD, PolicyKind};

/// Options of the cache.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct CacheArgs {
    /// Maximum size of the cache in memory, shared by all disks of the daemon [default: no cache]
    #[arg(long, value_name = "SIZE")]
    pub cache: Option<CacheSize>,
    /// Minimum size of the cache, to which it may shrink when the host's memory runs short
    /// [default: an eighth of --cache]
    #[arg(long, value_name = "SIZE")]
    pub cache_min: Option<CacheSize>,
    /// Policy that selects the blocks to keep [default: default]
    #[arg(long, value_name = "NAME", value_enum)]
    pub cache_policy: Option<PolicyKind>,
    /// Threshold from which MultiCache's rules keep a block: its accesses, or its weight (accesses
    /// times the VM's shares of all vCPUs and of all memory); lower it where there are several VMs
    /// [default: 2]
    #[arg(long, value_name = "N")]
    pub freq_threshold: Option<FreqThreshold>,
}

/// FREQ_THRESHOLD of MultiCache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FreqThreshold(pub f64);

impl Default for FreqThreshold {
    fn default() -> Self {
        Self(FREQ_THRESHOLD)
    }
}

impl FromStr for FreqThreshold {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let threshold = text.parse().ok().filter(|it: &f64| it.is_finite() && *it > 0.0);
        threshold.map(Self).ok_or_else(|| format!("a threshold of {text}; use a number above 0"))
    }
}

/// Size limit of a cache in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSize(pub u64);

/// Configuration of a cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CacheConfig {
    /// Least bytes of data that it may be shrunk to.
    pub bytes_min: u64,
    /// Most bytes of data that it may hold.
    pub bytes_max: u64,
    /// Replacement policy.
    pub policy: PolicyKind,
    /// Threshold of MultiCache's rules.
    pub threshold: FreqThreshold,
}

impl CacheConfig {
    /// Makes the cache.
    pub fn make(&self) -> io::Result<Cache> {
        Cache::with_threshold(self.bytes_max, self.policy, self.threshold.0)
    }
}

impl CacheArgs {
    /// Returns the configuration, if a cache is wanted; or why the options are invalid, with
    /// advice.
    pub fn config(&self) -> Result<Option<CacheConfig>, (&'static str, &'static str)> {
        let Self { cache, cache_min, cache_policy, freq_threshold } = *self;
        let policy = cache_policy.unwrap_or_default();
        if freq_threshold.is_some() && !policy.has_threshold() {
            let why = "freq-threshold without a rule of MultiCache";
            return Err((why, "choose --cache-policy multicache-weight or multicache-count"));
        }
        let Some(CacheSize(bytes_max)) = cache else {
            let says_how = cache_min.is_some() || cache_policy.is_some();
            let why = "cache-min or cache-policy without a cache";
            return if says_how { Err((why, "give --cache, or leave them out")) } else { Ok(None) };
        };
        let bytes_min = cache_min.map_or((bytes_max / 8).max(Cache::BYTES_MIN), |min| min.0);
        if bytes_min > bytes_max {
            let why = "the cache's smallest size is larger than its largest";
            return Err((why, "use a smaller --cache-min"));
        }
        let threshold = freq_threshold.unwrap_or_default();
        Ok(Some(CacheConfig { bytes_min, bytes_max, policy, threshold }))
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

    #[test]
    fn a_threshold_is_a_number_and_goes_with_a_rule_that_has_one() {
        assert_eq!("0.5".parse(), Ok(FreqThreshold(0.5)));
        for text in ["0", "-1", "inf", "NaN", "x", ""] {
            assert!(text.parse::<FreqThreshold>().is_err(), "{text} was accepted");
        }
        let (cache, threshold) = (Some(CacheSize(1 << 30)), Some(FreqThreshold(3.0)));
        let args = CacheArgs { cache, freq_threshold: threshold, ..CacheArgs::default() };
        assert!(args.config().unwrap_err().0.contains("without a rule"));
        let cache_policy = Some(PolicyKind::MultiCacheCount);
        let config = CacheArgs { cache_policy, ..args }.config().unwrap().unwrap();
        assert_eq!(config.threshold, FreqThreshold(3.0));
    }
}
