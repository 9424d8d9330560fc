//! Newtypes for numbers that are easily mixed up, with only the arithmetic that makes sense. They
//! are plain integers at run time and in the file.

use std::fmt;

/// Number of a segment. Segment 0 holds the superblocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentId(u32);

impl SegmentId {
    /// The segment of the superblocks, to which nothing is appended.
    pub const SUPERBLOCKS: Self = Self(0);

    /// The segment with this number.
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// Returns the number.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Returns its index in a list of all segments.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Returns the segment behind it.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// Iterates over the segments with these numbers.
    pub fn range(numbers: std::ops::Range<u32>) -> impl Iterator<Item = Self> {
        numbers.map(Self)
    }
}

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Position of a record in the total order of all guest writes. (Records of copies and of the map
/// have an order of their own.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence(u64);

impl Sequence {
    /// The first record of an image.
    pub const FIRST: Self = Self(1);

    /// The position with this number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the next position.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// Returns the index of this position in a list that begins with `first`, which is not later.
    pub const fn index_from(self, first: Self) -> usize {
        (self.0 - first.0) as usize
    }

    /// Returns the number of records from an earlier position to this one; 0 if `earlier` is not
    /// earlier.
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Identifies one use of a segment, from its opening until it is free again: the session that
/// opened it in the upper half, a count in the lower one. Unique, so records that an earlier use
/// left in the segment are told from those of the present one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(u64);

impl Incarnation {
    /// No use of any segment: in the file, a head with it is absent.
    pub const NONE: Self = Self(0);

    /// The incarnation with this count in a session.
    pub const fn new(session: u64, count: u32) -> Self {
        Self(session << 32 | count as u64)
    }

    /// Decodes an incarnation from the file.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Encodes the incarnation for the file.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Returns the session that opened the segment.
    pub const fn session(self) -> u64 {
        self.0 >> 32
    }

    /// Returns whether it is [`NONE`](Self::NONE).
    pub const fn is_none(self) -> bool {
        self.0 == Self::NONE.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incarnation_tells_its_session() {
        let incarnation = Incarnation::new(7, 3);
        assert_eq!(incarnation.bits(), 7 << 32 | 3);
        assert_eq!(incarnation.session(), 7);
        assert!(!incarnation.is_none() && Incarnation::NONE.is_none());
    }

    #[test]
    fn a_distance_between_positions_is_never_negative() {
        let first = Sequence::FIRST;
        assert_eq!(first.next().next().since(first), 2);
        assert_eq!(first.since(first.next()), 0);
    }
}
