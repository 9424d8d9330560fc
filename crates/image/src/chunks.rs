//! Copying in chunks, and what holds no data.

use flowstone_block::{Extent, SECTOR_BYTES, Sector, SectorCount};

/// Bytes that are copied at a time.
pub const CHUNK_BYTES: u64 = 2 << 20;

/// Splits `extent` into pieces of at most `bytes` bytes, in whole sectors.
pub fn chunks(extent: Extent, bytes: u64) -> impl Iterator<Item = Extent> {
    let step = bytes / SECTOR_BYTES;
    let end = extent.end().get();
    (extent.start().get()..end).step_by(step as usize).filter_map(move |start| {
        Extent::new(Sector::new(start), SectorCount::new(step.min(end - start)))
    })
}

/// Returns whether all bytes are zero.
pub fn is_zero(block: &[u8]) -> bool {
    block.iter().all(|byte| *byte == 0)
}
