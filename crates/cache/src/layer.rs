//! The layer: a disk with a cache.

use std::io;
use std::sync::Arc;

use flowstone_block::{Channel, Geometry, Layer, Origin, PerQueue, QueueContext};

use crate::channel::CachedChannel;
use crate::disk::CachedDisk;
use crate::names::BlockId;
use crate::shared::Cache;

/// A disk with a cache.
pub struct Cached {
    base: Arc<dyn Layer>,
    disk: Arc<CachedDisk>,
}

impl Cached {
    /// Caches reads of `base`, the disk `number` of the daemon, in `cache`. Journals bypass it
    /// unless `holds_journals`.
    pub fn new(base: Arc<dyn Layer>, cache: Arc<Cache>, number: u32, holds_journals: bool) -> Self {
        // Panics on a number that does not fit before there is a disk to be dropped.
        let _ = BlockId::of_disk(number, 0);
        let disk = CachedDisk { cache, number, holds_journals, counters: PerQueue::default() };
        Self { base, disk: Arc::new(disk) }
    }

    /// Returns the disk's state in the cache, for reports.
    pub fn disk(&self) -> Arc<CachedDisk> {
        Arc::clone(&self.disk)
    }
}

impl Layer for Cached {
    fn geometry(&self) -> Geometry {
        self.base.geometry()
    }

    fn channel(&self, context: &QueueContext) -> io::Result<Box<dyn Channel>> {
        let counters = match context.origin {
            Origin::Queue { queue, .. } => Some(self.disk.counters.of_queue(queue)),
            // The daemon's own reads say nothing about the guest's reads.
            Origin::Own => None,
        };
        Ok(Box::new(CachedChannel::new(&self.base, &self.disk, counters, context)?))
    }
}
