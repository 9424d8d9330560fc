//! A disk for tests of messages, which no queue uses.

use std::io;

use flowstone_block::{Channel, Geometry, Layer, QueueContext, QueueRunner, SectorCount};

use super::VirtQueue;

/// A disk that no queue uses.
pub struct Unused;

impl Layer for Unused {
    fn geometry(&self) -> Geometry {
        Geometry::with_capacity(SectorCount::new(8))
    }

    fn channel(&self, _context: &QueueContext) -> io::Result<Box<dyn Channel>> {
        unreachable!("no queue starts")
    }
}

impl QueueRunner<VirtQueue> for Unused {
    fn start(&mut self, _index: usize, _queue: VirtQueue) -> io::Result<()> {
        unreachable!("no queue starts")
    }

    fn begin_stop(&mut self, _index: usize) {}

    fn stop(&mut self, _index: usize) -> Option<VirtQueue> {
        None
    }
}
