//! The effect of one operation on the medium, whole or in part.

use std::ops::Range;
use std::sync::Arc;

use super::medium::{Medium, PAGE_BYTES};

/// Smallest unit that a drive writes atomically, in bytes.
const SECTOR_BYTES: u64 = 512;

/// A change of the file. Ranges are in bytes of the file.
#[derive(Clone, Debug)]
pub enum Change {
    /// Data at a position.
    Write { at: u64, data: Arc<[u8]> },
    /// Zeroes the range and frees its space.
    Punch(Range<u64>),
    /// Zeroes the range and keeps its space.
    Zero(Range<u64>),
    /// Allocates space.
    Allocate(Range<u64>),
    /// Sets the size.
    SetSize(u64),
    /// Flips one bit of one byte.
    Flip { at: u64, bit: u8 },
}

impl Change {
    /// Returns the bytes that it affects.
    pub fn range(&self) -> Range<u64> {
        match self {
            Self::Write { at, data } => *at..*at + data.len() as u64,
            Self::Punch(range) | Self::Zero(range) | Self::Allocate(range) => range.clone(),
            Self::SetSize(bytes) => *bytes..*bytes,
            Self::Flip { at, .. } => *at..*at + 1,
        }
    }

    /// Returns the units into which a power cut or a kill may tear it, in bytes; empty if it is
    /// atomic.
    pub fn tear_units(&self) -> &'static [u64] {
        match self {
            Self::Write { .. } => &[SECTOR_BYTES, PAGE_BYTES],
            Self::Punch(_) | Self::Zero(_) => &[PAGE_BYTES],
            Self::Allocate(_) | Self::SetSize(_) | Self::Flip { .. } => &[],
        }
    }

    /// Returns the unit in which a failing call may have been done in part.
    pub const fn unit(&self) -> u64 {
        if matches!(self, Self::Write { .. }) { SECTOR_BYTES } else { PAGE_BYTES }
    }

    /// Returns the number of pages it needs that are not allocated yet.
    pub fn missing_pages(&self, medium: &Medium) -> u64 {
        match self {
            Self::Write { .. } | Self::Allocate(_) => medium.missing_pages(self.range()),
            Self::Zero(range) => medium.missing_pages(range.start..range.end.min(medium.size())),
            Self::Punch(_) | Self::SetSize(_) | Self::Flip { .. } => 0,
        }
    }

    /// Returns the part of the change that lies in `part`, a piece of its [range](Self::range).
    pub fn part(&self, part: Range<u64>) -> Self {
        match self {
            Self::Write { at, data } => {
                let bytes = (part.start - at) as usize..(part.end - at) as usize;
                Self::Write { at: part.start, data: data[bytes].into() }
            }
            Self::Punch(_) => Self::Punch(part),
            Self::Zero(_) => Self::Zero(part),
            Self::Allocate(_) => Self::Allocate(part),
            Self::SetSize(_) | Self::Flip { .. } => self.clone(),
        }
    }

    /// Applies it to a medium.
    pub fn apply(&self, medium: &mut Medium) {
        match self {
            Self::Write { at, data } => medium.write(*at, data),
            Self::Punch(range) => medium.punch(range.clone()),
            Self::Zero(range) => medium.zero(range.clone()),
            Self::Allocate(range) => medium.allocate(range.clone()),
            Self::SetSize(bytes) => medium.set_size(*bytes),
            Self::Flip { at, bit } => medium.flip(*at, *bit),
        }
    }
}
