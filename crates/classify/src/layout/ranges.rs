//! Ranges of sectors.

use std::ops::Range;

use flowstone_block::{Class, SECTOR_BYTES};

/// A range of sectors that has a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    pub start: u64,
    pub end: u64,
    pub class: Class,
}

/// Returns whether one of the ranges, which are sorted and disjoint, contains `start..end`.
pub fn contains(ranges: &[Range<u64>], start: u64, end: u64) -> bool {
    let next = ranges.partition_point(|range| range.end <= start);
    ranges.get(next).is_some_and(|range| range.start <= start && end <= range.end)
}

/// Returns the sectors that lie entirely in a byte range.
pub fn whole_sectors(bytes: &Range<u64>) -> Range<u64> {
    bytes.start.div_ceil(SECTOR_BYTES)..bytes.end / SECTOR_BYTES
}

/// Returns the sectors that a byte range touches.
pub fn sectors(bytes: Range<u64>) -> Range<u64> {
    bytes.start / SECTOR_BYTES..bytes.end.div_ceil(SECTOR_BYTES)
}

/// Sorts and merges regions. Where two overlap, which no consistent file system has, the first one
/// wins.
pub fn merged(mut regions: Vec<Region>) -> Vec<Region> {
    regions.sort_by_key(|region| region.start);
    let mut merged: Vec<Region> = Vec::with_capacity(regions.len());
    for mut region in regions {
        if let Some(last) = merged.last_mut() {
            region.start = region.start.max(last.end);
            if region.start >= region.end {
                continue;
            }
            if region.start == last.end && region.class == last.class {
                last.end = region.end;
                continue;
            }
        }
        merged.push(region);
    }
    merged
}

pub fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges.into_iter().filter(|range| range.start < range.end) {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}
