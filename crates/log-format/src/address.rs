//! Addresses of blocks in the file, and map entries.

use flowstone_fileio::FileOffset;

/// Bytes in a block: the unit of mapping, of checksums and of every structure in the file.
pub const BLOCK_BYTES: usize = 4096;
/// Sectors in a block.
pub const BLOCK_SECTORS: u64 = BLOCK_BYTES as u64 / flowstone_block::SECTOR_BYTES;

/// Number of a block in the file. Address 0 holds the superblock, so it stands for "not mapped".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(u32);

impl Address {
    /// Not in the file.
    pub const NOWHERE: Self = Self(0);

    /// The block with this number.
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// Returns its number.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Returns its byte offset in the file.
    pub const fn offset(self) -> FileOffset {
        FileOffset::new(self.0 as u64 * BLOCK_BYTES as u64)
    }

    /// Returns whether `next` is the next block of data: one header block may lie between.
    pub const fn is_followed_by(self, next: Self) -> bool {
        next.0.wrapping_sub(self.0).wrapping_sub(1) < 2
    }

    /// The address `blocks` further on.
    ///
    /// # Panics
    /// If it does not fit 32 bits: addresses are derived inside segments, whose ends fit.
    #[must_use]
    pub const fn forward(self, blocks: u32) -> Self {
        Self(self.0.checked_add(blocks).expect("an address inside a segment"))
    }
}

/// Map entry of one guest block: its address and checksum in 64 bits, so that both change together
/// and a reader needs no lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MapEntry(u64);

impl MapEntry {
    /// The block is not in the file and reads as zeroes.
    pub const UNMAPPED: Self = Self(0);

    /// The entry of a block at `address` whose bytes have this CRC32C.
    pub const fn new(address: Address, checksum: u32) -> Self {
        Self((checksum as u64) << 32 | address.0 as u64)
    }

    /// Decodes the entry from a leaf.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Encodes the entry for a leaf.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Returns the address of the block.
    pub const fn address(self) -> Address {
        Address(self.0 as u32)
    }

    /// Returns the CRC32C of the block.
    pub const fn checksum(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Returns whether the block has an address.
    pub const fn is_mapped(self) -> bool {
        self.address().0 != 0
    }
}
