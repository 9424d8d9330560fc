//! Identifiers of blocks, and of a policy's records of them.

use std::hash::BuildHasher as _;
use std::ops::Range;

use flowstone_block::Extent;

use crate::BLOCK_SECTORS;

/// A block of 4 KiB of one of the disks: disk number and block number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u64);

impl BlockId {
    /// Bits of a block number: up to 4 PiB per disk.
    const NUMBER_BITS: u32 = 40;
    /// Greatest block number.
    pub const NUMBER_MAX: u64 = (1 << Self::NUMBER_BITS) - 1;

    /// Makes the id of a block of the disk with this number.
    ///
    /// # Panics
    /// If the number is greater than [`NUMBER_MAX`](Self::NUMBER_MAX), or that of the disk than
    /// 2^24.
    pub const fn of_disk(disk: u32, number: u64) -> Self {
        assert!(number <= Self::NUMBER_MAX && disk < 1 << (u64::BITS - Self::NUMBER_BITS));
        Self((disk as u64) << Self::NUMBER_BITS | number)
    }

    /// Returns the disk's number.
    pub const fn disk(self) -> u32 {
        (self.0 >> Self::NUMBER_BITS) as u32
    }

    /// Returns the block's number in the disk.
    pub const fn number(self) -> u64 {
        self.0 & Self::NUMBER_MAX
    }
}

/// Index of a policy's record of a block. It does not change while the block is kept, and is below
/// [`Policy::places`](crate::Policy::places): the cache finds the block's frame by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place(pub u32);

/// Returns the numbers of the blocks that share a sector with `extent`.
pub fn numbers(extent: Extent) -> Range<u64> {
    extent.start().get() / BLOCK_SECTORS..extent.end().get().div_ceil(BLOCK_SECTORS)
}

/// Hashes a block, to choose samples: spreads consecutive numbers (the multiplier is 2^64 / the
/// golden ratio). The sample cannot be predicted without the key.
pub const fn spread(block: BlockId, key: u64) -> u64 {
    (block.0 ^ key).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40
}

/// Returns a random key, unknown to guests.
pub fn random_key() -> u64 {
    foldhash::fast::RandomState::default().hash_one(0u64)
}
