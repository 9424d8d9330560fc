//! The device's configuration space: `struct virtio_blk_config` (virtio 1.2, section 5.2.4).

use flowstone_block::{Geometry, SECTOR_BYTES, SectorCount};

use super::protocol::{
    FILLED_SECTORS_MAX, RANGE_SECTORS_MAX, RANGES_MAX, SEGMENT_BYTES_MAX, SEGMENTS_MAX,
};

/// Bytes of the structure, up to `write_zeroes_may_unmap` and its padding.
pub const CONFIG_BYTES: usize = 60;
/// Offset of the cache-mode byte that the driver writes: write-back (1) or write-through (0).
pub const AT_WRITEBACK: u32 = 32;

/// Preferred size and alignment of large transfers.
const OPTIMAL_IO_BYTES: u32 = 64 << 10;

/// Encodes the structure, with the current `capacity`.
pub fn encode(
    geometry: &Geometry,
    capacity: SectorCount,
    queues: u16,
    write_through: bool,
) -> [u8; CONFIG_BYTES] {
    let mut space = [0; CONFIG_BYTES];
    let mut put = |at: usize, bytes: &[u8]| space[at..at + bytes.len()].copy_from_slice(bytes);
    let block_bytes = geometry.logical_block_bytes;
    let blocks_per_physical = (geometry.physical_block_bytes / block_bytes).max(1);
    put(0, &capacity.get().to_le_bytes());
    put(8, &SEGMENT_BYTES_MAX.to_le_bytes());
    put(12, &SEGMENTS_MAX.to_le_bytes());
    put(20, &block_bytes.to_le_bytes());
    put(24, &[blocks_per_physical.ilog2() as u8]);
    put(26, &(blocks_per_physical as u16).to_le_bytes());
    put(28, &(OPTIMAL_IO_BYTES / block_bytes).to_le_bytes());
    put(AT_WRITEBACK as usize, &[u8::from(!write_through)]);
    put(34, &queues.to_le_bytes());
    // Limits are never zero, even if the feature is not offered: drivers have divided by them.
    put(36, &RANGE_SECTORS_MAX.to_le_bytes());
    put(40, &RANGES_MAX.to_le_bytes());
    let granularity = u64::from(geometry.discard_granularity_bytes) / SECTOR_BYTES;
    put(44, &(granularity.max(1) as u32).to_le_bytes());
    let (zeroed_max, zeroed_ranges_max) = match geometry.zeroes_are_written {
        true => (FILLED_SECTORS_MAX, 1),
        false => (RANGE_SECTORS_MAX, RANGES_MAX),
    };
    put(48, &zeroed_max.to_le_bytes());
    put(52, &zeroed_ranges_max.to_le_bytes());
    put(56, &[u8::from(geometry.discards)]);
    space
}

/// Returns `size` bytes of the space from `offset`: always as many as asked for, zeroes past its
/// end. QEMU drops a device whose answer has another size.
pub fn window(space: &[u8; CONFIG_BYTES], offset: u32, size: u32) -> Vec<u8> {
    let byte = |at: u32| space.get(at as usize).copied().unwrap_or(0);
    (0..size).map(|index| byte(offset.saturating_add(index))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_has_the_size_that_was_asked_for() {
        let geometry = Geometry::with_capacity(SectorCount::new(77));
        let space = encode(&geometry, geometry.capacity, 4, false);
        assert_eq!(window(&space, 0, 8), 77u64.to_le_bytes());
        assert_eq!(window(&space, 0, 256).len(), 256);
        assert_eq!(window(&space, 58, 4), [0; 4]);
        assert_eq!(window(&space, u32::MAX, 4), [0; 4]);
        assert_eq!(window(&space, AT_WRITEBACK, 1), [1]);
    }

    #[test]
    fn zeroes_that_have_to_be_written_are_offered_in_short_ranges() {
        let geometry = Geometry::with_capacity(SectorCount::new(1 << 30));
        let zeroes =
            |geometry: &Geometry| window(&encode(geometry, geometry.capacity, 1, false), 48, 8);
        assert_eq!(zeroes(&geometry)[4..], 64u32.to_le_bytes());
        let written = Geometry { zeroes_are_written: true, ..geometry };
        assert_eq!(zeroes(&written)[..4], 8192u32.to_le_bytes());
        assert_eq!(zeroes(&written)[4..], 1u32.to_le_bytes());
    }
}
