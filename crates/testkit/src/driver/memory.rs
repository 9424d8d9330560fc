//! Guest memory: regions that a backend can map, and slices of them.
//!
//! Guest-physical addresses differ from the mapping's own addresses, so that a backend which
//! confuses the two fails at once. Memory is allocated by a bump allocator and never freed; it is
//! unmapped when the last slice is dropped. Access to the bytes is in `slice`; rings are not
//! handled here.

use std::ops::Range;
use std::sync::Arc;

use super::region::{GuestAddress, Region};
use super::slice::Slice;
use crate::{Error, Result};

/// Guest-physical address of the first region.
const GUEST_BASE: u64 = 0x4000_0000;

/// The layout of the guest's memory.
#[derive(Clone, Copy, Debug)]
pub struct MemoryLayout {
    /// Number of regions, each with a file of its own.
    pub regions: usize,
    /// Size of each region, rounded up to 2 MiB.
    pub region_bytes: usize,
    /// Hole between regions in guest-physical space; 0 makes them adjacent.
    pub gap_bytes: u64,
}

impl MemoryLayout {
    /// Makes a layout of one region of at least `bytes`.
    pub fn single(bytes: usize) -> Self {
        MemoryLayout { regions: 1, region_bytes: bytes, gap_bytes: 0 }
    }
}

/// The guest's memory; clones share it.
#[derive(Clone, Debug)]
pub struct Memory {
    regions: Arc<[Arc<Region>]>,
}

impl Memory {
    /// Maps fresh, zeroed memory. Pages are populated on first use.
    pub fn new(layout: MemoryLayout) -> Result<Self> {
        let mut guest = GuestAddress(GUEST_BASE);
        let mut regions = Vec::with_capacity(layout.regions);
        for _ in 0..layout.regions {
            let region = Region::map(guest, layout.region_bytes)?;
            guest = guest.plus(region.bytes as u64).plus(layout.gap_bytes);
            regions.push(Arc::new(region));
        }
        Ok(Memory { regions: regions.into() })
    }

    /// Allocates `bytes` zeroed bytes at a multiple of `align`, from the first region with room.
    pub fn alloc(&self, bytes: usize, align: usize) -> Result<Slice> {
        let full = || Error::Misuse(format!("no {bytes} bytes left in guest memory"));
        self.regions.iter().find_map(|region| Slice::take(region, bytes, align)).ok_or_else(full)
    }

    /// Returns the regions, in guest-physical order.
    pub fn regions(&self) -> &[Arc<Region>] {
        &self.regions
    }

    /// Copies bytes out, by guest-physical address, across adjacent regions.
    pub fn read(&self, from: GuestAddress, target: &mut [u8]) -> Result<()> {
        let bytes = target.len();
        self.for_each_part(from, bytes, |slice, part| slice.read(0, &mut target[part]))
    }

    /// Copies bytes in, by guest-physical address, across adjacent regions.
    pub fn write(&self, to: GuestAddress, source: &[u8]) -> Result<()> {
        self.for_each_part(to, source.len(), |slice, part| slice.write(0, &source[part]))
    }

    /// Accesses a range, region by region: each slice begins with its part of the range.
    fn for_each_part(
        &self,
        first: GuestAddress,
        bytes: usize,
        mut access: impl FnMut(&Slice, Range<usize>),
    ) -> Result<()> {
        let mut done = 0;
        while done < bytes {
            let (slice, room) = self.at(first.plus(done as u64))?;
            let end = bytes.min(done + room);
            access(&slice, done..end);
            done = end;
        }
        Ok(())
    }

    /// Returns the slice from `address` to the end of its region, and its length.
    fn at(&self, address: GuestAddress) -> Result<(Slice, usize)> {
        let inside = |region: &&Arc<Region>| {
            address >= region.guest && address.0 - region.guest.0 < region.bytes as u64
        };
        let region = self
            .regions
            .iter()
            .find(inside)
            .ok_or_else(|| Error::Misuse(format!("no guest memory at {:#x}", address.0)))?;
        let start = (address.0 - region.guest.0) as usize;
        let room = region.bytes - start;
        Ok((Slice::of(region, start, room), room))
    }
}
