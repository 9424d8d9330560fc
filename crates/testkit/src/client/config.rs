//! `virtio_blk_config`, decoded.
//!
//! Picture (offsets in bytes, little-endian):
//! ```text
//!  0 capacity:8  8 size_max:4  12 seg_max:4  16 geometry:4  20 blk_size:4  24 topology:8
//! 32 wce:1 unused:1  34 num_queues:2  36 max_discard_sectors:4 seg:4 alignment:4
//! 48 max_write_zeroes_sectors:4 seg:4  56 may_unmap:1
//! ```
//! Geometry and topology are not decoded. Fields beyond the bytes sent by the backend read as zero.
//! Whether a field is valid depends on feature bits, which are not checked here.

/// Bytes of it that are asked for: all but secure erase.
pub(super) const CONFIG_BYTES: u32 = 60;
/// Offset of the `wce` byte, the only one a driver may write.
pub const WCE_OFFSET: u32 = 32;

/// The configuration space of a virtio block device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlkConfig {
    /// Size of the disk in 512-byte sectors.
    pub capacity_sectors: u64,
    /// Largest segment.
    pub size_max: u32,
    /// Most segments per request.
    pub seg_max: u32,
    /// Logical block size.
    pub blk_size: u32,
    /// Write cache: 1 = write back, 0 = write through.
    pub wce: u8,
    /// Number of request queues.
    pub num_queues: u16,
    /// Largest discard range.
    pub max_discard_sectors: u32,
    /// Most ranges in one discard.
    pub max_discard_seg: u32,
    /// Alignment of discards.
    pub discard_sector_alignment: u32,
    /// Largest write-zeroes range.
    pub max_write_zeroes_sectors: u32,
    /// Most ranges in one write-zeroes.
    pub max_write_zeroes_seg: u32,
    /// A write-zeroes request with the unmap flag may unmap.
    pub write_zeroes_may_unmap: u8,
}

impl BlkConfig {
    /// Decodes as many fields as there are bytes.
    pub fn decode(bytes: &[u8]) -> Self {
        let word = |offset| u32::from_le_bytes(field(bytes, offset));
        BlkConfig {
            capacity_sectors: u64::from_le_bytes(field(bytes, 0)),
            size_max: word(8),
            seg_max: word(12),
            blk_size: word(20),
            wce: field::<1>(bytes, WCE_OFFSET as usize)[0],
            num_queues: u16::from_le_bytes(field(bytes, 34)),
            max_discard_sectors: word(36),
            max_discard_seg: word(40),
            discard_sector_alignment: word(44),
            max_write_zeroes_sectors: word(48),
            max_write_zeroes_seg: word(52),
            write_zeroes_may_unmap: field::<1>(bytes, 56)[0],
        }
    }

    /// Returns the size of the disk in bytes.
    pub fn capacity_bytes(&self) -> u64 {
        self.capacity_sectors * crate::virtio::SECTOR_BYTES
    }
}

/// Returns a field of a byte string that may end early.
fn field<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    let field = bytes.get(offset..offset + N);
    field.map_or([0; N], |field| field.try_into().expect("the range has N bytes"))
}
