//! Where a block is in the file, and what the map says about it.

use flowstone_fileio::FileOffset;

/// Bytes in a block: the unit of mapping, of checksums and of every structure in the file.
pub const BLOCK_BYTES: usize = 4096;
/// Sectors in a block.
pub const BLOCK_SECTORS: u64 = BLOCK_BYTES as u64 / flowstone_block::SECTOR_BYTES;

/// The number of a block in the file. Address 0 holds the superblock, so it stands for "nowhere".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(u32);

impl Address {
    /// Not in the file.
    pub const NOWHERE: Self = Self(0);

    /// The block with this number.
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// Its number.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Where it begins in the file.
    pub const fn offset(self) -> FileOffset {
        FileOffset::new(self.0 as u64 * BLOCK_BYTES as u64)
    }

    /// Whether `next` is the next block of data: a header may lie between.
    pub const fn is_followed_by(self, next: Self) -> bool {
        next.0.wrapping_sub(self.0).wrapping_sub(1) < 2
    }

    /// The address `blocks` further on.
    ///
    /// # Panics
    /// If it does not fit: addresses are made inside segments, whose ends do.
    #[must_use]
    pub const fn forward(self, blocks: u32) -> Self {
        Self(self.0.checked_add(blocks).expect("an address inside a segment"))
    }
}

/// What the map holds for one guest block: its address and checksum in 64 bits, so that both change
/// together and a reader needs no lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MapEntry(u64);

impl MapEntry {
    /// The block has no place in the file and reads as zeroes.
    pub const UNMAPPED: Self = Self(0);

    /// The entry for a block at `address` whose bytes have this CRC32C.
    pub const fn new(address: Address, checksum: u32) -> Self {
        Self((checksum as u64) << 32 | address.0 as u64)
    }

    /// The entry as it is in a leaf.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The entry as it goes into a leaf.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Where the block is.
    pub const fn address(self) -> Address {
        Address(self.0 as u32)
    }

    /// The CRC32C of its bytes.
    pub const fn checksum(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Whether the block has a place.
    pub const fn is_mapped(self) -> bool {
        self.address().0 != 0
    }
}
