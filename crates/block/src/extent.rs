//! Guest addresses: sectors, counts of sectors, and the half-open range made of both.
//!
//! Only meaningful arithmetic is provided, so that a guest address and a host file offset
//! (`FileOffset` in the file I/O crate) cannot be mixed up silently.

use std::fmt;

/// Bytes in a virtio-blk sector (virtio 1.2, section 5.2): every guest address counts these,
/// whatever the logical block size.
pub const SECTOR_BYTES: u64 = 512;

/// A guest sector number, counted from the start of the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sector(u64);

/// A number of sectors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SectorCount(u64);

impl Sector {
    /// Makes the sector of this number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the sector number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl SectorCount {
    /// Makes a count of this many sectors.
    pub const fn new(count: u64) -> Self {
        Self(count)
    }

    /// Converts `bytes` to whole sectors; `None` if there is a remainder.
    pub const fn from_bytes(bytes: u64) -> Option<Self> {
        if bytes.is_multiple_of(SECTOR_BYTES) { Some(Self(bytes / SECTOR_BYTES)) } else { None }
    }

    /// Returns the count.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the same amount in bytes. Saturates: no disk has more than 2^64 bytes.
    pub const fn bytes(self) -> u64 {
        self.0.saturating_mul(SECTOR_BYTES)
    }
}

/// A half-open, non-empty range of guest sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    start: Sector,
    count: SectorCount,
}

impl Extent {
    /// Makes the range of `count` sectors from `start`; `None` if it is empty or its end overflows.
    pub const fn new(start: Sector, count: SectorCount) -> Option<Self> {
        if count.0 == 0 || start.0.checked_add(count.0).is_none() {
            return None;
        }
        Some(Self { start, count })
    }

    /// Returns the first sector.
    pub const fn start(self) -> Sector {
        self.start
    }

    /// Returns the number of sectors.
    pub const fn count(self) -> SectorCount {
        self.count
    }

    /// Returns the first sector after the range.
    pub const fn end(self) -> Sector {
        Sector(self.start.0 + self.count.0)
    }

    /// Returns the byte address of the first sector in the guest's address space.
    pub const fn start_bytes(self) -> u64 {
        self.start.0.saturating_mul(SECTOR_BYTES)
    }

    /// Returns the length in bytes.
    pub const fn bytes(self) -> u64 {
        self.count.bytes()
    }

    /// Returns whether the range lies within a disk of `capacity` sectors.
    pub const fn fits(self, capacity: SectorCount) -> bool {
        self.end().0 <= capacity.0
    }

    /// Returns whether the two ranges share a sector.
    pub fn overlaps(self, other: Self) -> bool {
        self.start < other.end() && other.start < self.end()
    }

    /// Merges two ranges that overlap or touch; `None` if there is a gap between them.
    pub fn merge(self, other: Self) -> Option<Self> {
        if self.start > other.end() || other.start > self.end() {
            return None;
        }
        let start = self.start.min(other.start);
        let end = self.end().max(other.end());
        Self::new(start, SectorCount(end.0 - start.0))
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sectors {}+{}", self.start.0, self.count.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(start: u64, count: u64) -> Extent {
        Extent::new(Sector(start), SectorCount(count)).unwrap()
    }

    #[test]
    fn empty_and_overflowing_ranges_do_not_exist() {
        assert_eq!(Extent::new(Sector(7), SectorCount(0)), None);
        assert_eq!(Extent::new(Sector(u64::MAX), SectorCount(1)), None);
        assert!(Extent::new(Sector(u64::MAX - 1), SectorCount(1)).is_some());
    }

    #[test]
    fn touching_ranges_merge_and_distant_ones_do_not() {
        assert_eq!(extent(0, 8).merge(extent(8, 8)), Some(extent(0, 16)));
        assert_eq!(extent(8, 8).merge(extent(0, 4)), None);
        assert_eq!(extent(4, 8).merge(extent(0, 6)), Some(extent(0, 12)));
        assert!(!extent(0, 8).overlaps(extent(8, 1)));
        assert!(extent(0, 8).overlaps(extent(7, 1)));
    }

    #[test]
    fn a_range_fits_up_to_the_last_sector() {
        assert!(extent(8, 8).fits(SectorCount(16)));
        assert!(!extent(9, 8).fits(SectorCount(16)));
    }
}
