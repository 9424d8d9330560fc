//! How blocks, and what is remembered of them, are named.

use std::hash::BuildHasher as _;
use std::ops::Range;

use flowstone_block::Extent;

use crate::BLOCK_SECTORS;

/// A block of 4 KiB of one of the disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u64);

impl BlockId {
    /// Bits that number a disk's blocks: those of 4 PiB.
    const NUMBER_BITS: u32 = 40;
    /// No block has a greater number.
    pub const NUMBER_MAX: u64 = (1 << Self::NUMBER_BITS) - 1;

    /// A block of the disk with this number.
    ///
    /// # Panics
    /// If the number is greater than [`NUMBER_MAX`](Self::NUMBER_MAX), or that of the disk than
    /// 2^24.
    pub const fn of_disk(disk: u32, number: u64) -> Self {
        assert!(number <= Self::NUMBER_MAX && disk < 1 << (u64::BITS - Self::NUMBER_BITS));
        Self((disk as u64) << Self::NUMBER_BITS | number)
    }

    /// The disk's number.
    pub const fn disk(self) -> u32 {
        (self.0 >> Self::NUMBER_BITS) as u32
    }

    /// Which of the disk's blocks it is.
    pub const fn number(self) -> u64 {
        self.0 & Self::NUMBER_MAX
    }
}

/// Where a policy keeps what it remembers of a block. It stays the same while the block is kept,
/// and is below [`Policy::places`](crate::Policy::places): a cache finds the block's data by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place(pub u32);

/// The numbers of the blocks that share a sector with `extent`.
pub fn numbers(extent: Extent) -> Range<u64> {
    extent.start().get() / BLOCK_SECTORS..extent.end().get().div_ceil(BLOCK_SECTORS)
}

/// Spreads numbers of blocks that follow each other, to choose samples (the multiplier is 2^64 /
/// the golden ratio). Who does not know the key does not know the sample.
pub const fn spread(block: BlockId, key: u64) -> u64 {
    (block.0 ^ key).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40
}

/// A key that no guest knows.
pub fn random_key() -> u64 {
    foldhash::fast::RandomState::default().hash_one(0u64)
}
