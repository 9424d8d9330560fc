//! The layer: a disk whose blocks the cache holds.

use std::io;
use std::sync::Arc;

use flowstone_block::{Channel, Geometry, Layer, Origin, QueueContext};

use crate::channel::CachedChannel;
use crate::counters::Counters;
use crate::disk::CachedDisk;
use crate::names::BlockId;
use crate::shared::Cache;

/// The layer.
pub struct Cached {
    base: Arc<dyn Layer>,
    disk: Arc<CachedDisk>,
}

impl Cached {
    /// Reads of `base`, the disk `number` of the daemon, are answered from `cache` where it can.
    /// Journals pass by unless `holds_journals`.
    pub fn new(base: Arc<dyn Layer>, cache: Arc<Cache>, number: u32, holds_journals: bool) -> Self {
        // A number that does not fit is refused before there is a disk to be forgotten.
        let _ = BlockId::of_disk(number, 0);
        let disk = CachedDisk { cache, number, holds_journals, counters: Counters::default() };
        Self { base, disk: Arc::new(disk) }
    }

    /// What the cache does for this disk, to be reported.
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
            // The daemon's own reads say nothing of what its guests will read.
            Origin::Own => None,
        };
        Ok(Box::new(CachedChannel::new(&self.base, &self.disk, counters, context)?))
    }
}
