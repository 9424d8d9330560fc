//! A disk as the cache knows it.

use std::sync::Arc;

use crate::counters::Counters;
use crate::shared::Cache;
use crate::table::DiskUse;

/// A disk as the cache knows it.
pub struct CachedDisk {
    pub(crate) cache: Arc<Cache>,
    /// No other disk of the cache has it, ever.
    pub(crate) number: u32,
    pub(crate) holds_journals: bool,
    pub(crate) counters: Counters,
}

impl CachedDisk {
    /// What has been counted.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// What is held of it.
    pub fn held(&self) -> DiskUse {
        self.cache.disk(self.number)
    }
}
