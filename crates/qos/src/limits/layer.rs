//! The layer that holds a disk to its limit. Its place is above the cache: what memory answers counts, too.

use std::io;
use std::sync::Arc;

use flowstone_block::{Channel, Geometry, Layer, Origin, QueueContext};

use super::channel::LimitedChannel;
use super::disk::DiskLimits;
use super::group::Group;
use crate::{Limit, Weight};

/// See the module.
pub struct Limited {
    base: Arc<dyn Layer>,
    disk: Arc<DiskLimits>,
}

impl Limited {
    /// Holds `base` to `limit`, and to that of its group.
    pub fn new(base: Arc<dyn Layer>, group: Arc<Group>, limit: Limit, weight: Weight) -> Self {
        Self { base, disk: DiskLimits::new(group, limit, weight) }
    }

    /// What may be changed while it runs.
    pub fn disk(&self) -> Arc<DiskLimits> {
        Arc::clone(&self.disk)
    }
}

impl Layer for Limited {
    fn geometry(&self) -> Geometry {
        self.base.geometry()
    }

    fn channel(&self, context: &QueueContext) -> io::Result<Box<dyn Channel>> {
        let base = self.base.channel(context)?;
        Ok(match context.origin {
            Origin::Queue { queue, .. } => {
                let gate = self.disk.open_gate(queue, &context.reactor);
                Box::new(LimitedChannel::new(base, Arc::clone(&self.disk), gate))
            }
            // The daemon's own requests are no guest's.
            Origin::Own => base,
        })
    }
}
