//! What one operation does to the medium, whole or in part.

use std::ops::Range;
use std::sync::Arc;

use super::medium::{Medium, PAGE_BYTES};

/// Smallest unit that a drive writes or does not write, in bytes.
const SECTOR_BYTES: u64 = 512;

/// Something that changes the file. Ranges are in bytes of the file.
#[derive(Clone, Debug)]
pub enum Change {
    /// Data at a position.
    Write { at: u64, data: Arc<[u8]> },
    /// Zeroes, and the space given back.
    Punch(Range<u64>),
    /// Zeroes, and the space kept.
    Zero(Range<u64>),
    /// Space.
    Allocate(Range<u64>),
    /// A new end.
    SetSize(u64),
    /// One bit of one byte turned.
    Flip { at: u64, bit: u8 },
}

impl Change {
    /// The bytes it is about.
    pub fn range(&self) -> Range<u64> {
        match self {
            Self::Write { at, data } => *at..*at + data.len() as u64,
            Self::Punch(range) | Self::Zero(range) | Self::Allocate(range) => range.clone(),
            Self::SetSize(bytes) => *bytes..*bytes,
            Self::Flip { at, .. } => *at..*at + 1,
        }
    }

    /// The units into which a power cut or a kill may tear it, in bytes; empty if it is there or
    /// not.
    pub fn tear_units(&self) -> &'static [u64] {
        match self {
            Self::Write { .. } => &[SECTOR_BYTES, PAGE_BYTES],
            Self::Punch(_) | Self::Zero(_) => &[PAGE_BYTES],
            Self::Allocate(_) | Self::SetSize(_) | Self::Flip { .. } => &[],
        }
    }

    /// The units in which a call that fails may have done a part of it.
    pub const fn unit(&self) -> u64 {
        if matches!(self, Self::Write { .. }) { SECTOR_BYTES } else { PAGE_BYTES }
    }

    /// How many pages of space it needs that the medium has not given yet.
    pub fn missing_pages(&self, medium: &Medium) -> u64 {
        match self {
            Self::Write { .. } | Self::Allocate(_) => medium.missing_pages(self.range()),
            Self::Zero(range) => medium.missing_pages(range.start..range.end.min(medium.size())),
            Self::Punch(_) | Self::SetSize(_) | Self::Flip { .. } => 0,
        }
    }

    /// The change as far as it lies in `part`, a piece of its [range](Self::range).
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

    /// Does it.
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
