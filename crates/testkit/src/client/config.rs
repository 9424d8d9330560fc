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
        let field = Fields(bytes);
        BlkConfig {
            capacity_sectors: u64::from_le_bytes(field.at(0)),
            size_max: field.u32_at(8),
            seg_max: field.u32_at(12),
            blk_size: field.u32_at(20),
            wce: field.u8_at(WCE_OFFSET as usize),
            num_queues: field.u16_at(34),
            max_discard_sectors: field.u32_at(36),
            max_discard_seg: field.u32_at(40),
            discard_sector_alignment: field.u32_at(44),
            max_write_zeroes_sectors: field.u32_at(48),
            max_write_zeroes_seg: field.u32_at(52),
            write_zeroes_may_unmap: field.u8_at(56),
        }
    }

    /// Returns the size of the disk in bytes.
    pub fn capacity_bytes(&self) -> u64 {
        self.capacity_sectors * crate::virtio::SECTOR_BYTES
    }
}

/// Little-endian fields of a byte string that may end early.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn at<const N: usize>(&self, offset: usize) -> [u8; N] {
        let bytes = self.0.get(offset..offset + N);
        bytes.map_or([0; N], |b| b.try_into().expect("the range has N bytes"))
    }

    fn u8_at(&self, offset: usize) -> u8 {
        self.at::<1>(offset)[0]
    }

    fn u16_at(&self, offset: usize) -> u16 {
        u16::from_le_bytes(self.at(offset))
    }

    fn u32_at(&self, offset: usize) -> u32 {
        u32::from_le_bytes(self.at(offset))
    }
}
