//! A disk in the daemon's memory. It is lost with the daemon.
//!
//! The memory is one anonymous mapping, committed when it is written. Queues copy into and out of
//! it without locks, as with a real disk: only concurrent requests to the same sector may mix.

use std::io;
use std::ptr;
use std::sync::Arc;

use flowstone_block::{
    Channel, Extent, Geometry, Layer, Op, Pages, QueueContext, Request, SectorCount,
};

use super::null::AtOnce;

/// The disk in memory.
pub struct Mem {
    geometry: Geometry,
    store: Arc<Store>,
}

struct Store(Pages);

impl Mem {
    /// Makes a zeroed disk of `capacity`.
    pub fn new(capacity: SectorCount) -> io::Result<Self> {
        let bytes = usize::try_from(capacity.bytes()).map_err(io::Error::other)?;
        let store = Arc::new(Store(Pages::new(bytes)?));
        Ok(Self { geometry: Geometry::with_capacity(capacity), store })
    }
}

impl Store {
    fn transfer(&self, request: &Request, extent: Extent, copy: impl Fn(*mut u8, *mut u8, usize)) {
        let mut at = self.0.at(extent.start_bytes() as usize, extent.bytes() as usize);
        for piece in &request.memory {
            copy(at, piece.address(), piece.bytes());
            // SAFETY: the pieces together are as long as the extent, which is in bounds.
            at = unsafe { at.add(piece.bytes()) };
        }
    }

    fn execute(&self, request: &Request) {
        match request.op {
            // SAFETY: store and guest memory are both valid for the piece's length; two kinds of
            // memory never overlap.
            Op::Read(extent) => self.transfer(request, extent, |disk, guest, bytes| unsafe {
                ptr::copy_nonoverlapping(disk, guest, bytes);
            }),
            // SAFETY: as for reads.
            Op::Write(extent) => self.transfer(request, extent, |disk, guest, bytes| unsafe {
                ptr::copy_nonoverlapping(guest, disk, bytes);
            }),
            Op::Discard(extent) | Op::WriteZeroes { extent, .. } => {
                let start = extent.start_bytes() as usize;
                self.0.zero(start..start + extent.bytes() as usize);
            }
            Op::Flush => {}
        }
    }
}

impl Layer for Mem {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn channel(&self, context: &QueueContext) -> io::Result<Box<dyn Channel>> {
        let store = Arc::clone(&self.store);
        Ok(Box::new(AtOnce::new(context, move |request| store.execute(request))))
    }
}
