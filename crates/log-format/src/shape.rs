//! The shape of an image: sizes that are chosen at creation and never change, except the number of
//! segments, which grows with the disk.

use std::ops::Range;

use flowstone_block::mutated;

use super::address::{Address, BLOCK_BYTES, BLOCK_SECTORS};
use super::erase_unit::EraseUnit;
use super::ids::SegmentId;
use super::record::LEAF_ON_DISK_BLOCKS;

/// Blocks of the disk in a leaf of the map.
pub const LEAF_BLOCKS: u64 = 2048;
/// Smallest and largest segment, in bytes.
pub const SEGMENT_BYTES: Range<u64> = (256 << 10)..(1 << 30);
/// Default share of an image's segments beyond the size of its disk.
pub const RESERVE_DEFAULT_PERCENT: u32 = 25;
/// Valid reserves. With less the cleaner would copy far more than guests write; with more the file
/// is mostly unused space.
pub const RESERVE_PERCENT: Range<u32> = 3..75;
/// Largest default segment: several erase units of any SSD whose erase unit we know.
const SEGMENT_DEFAULT_MAX: u64 = 32 << 20;
/// Minimum number of default segments per disk, so that cleaning has a choice.
const SEGMENTS_PER_DISK: u64 = 512;
/// Minimum number of segments, however large the drive's erase units are.
const SEGMENTS_LEAST: u64 = 128;
/// Segments besides heads, trims and the map: the cleaner's reserve, its output and the map's, and
/// a little more than writes must leave.
const UPKEEP_SEGMENTS: u64 = 8;

/// Minimum share of a segment that cleaning it must free.
const GAIN_PERCENT: u32 = 3;

/// Bytes of the map root besides its leaves and segments.
pub const ROOT_HEADER_BYTES: u64 = 32;
pub const ROOT_LEAF_BYTES: u64 = 12;
pub const ROOT_SEGMENT_BYTES: u64 = 24;

/// The layout of one image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Blocks of a segment.
    pub segment_blocks: u32,
    /// Segments beyond the size of the disk, in percent of it.
    pub reserve_percent: u32,
    /// Streams of guest data: one, or one for metadata and one for the rest.
    pub streams: u32,
}

impl Shape {
    /// Returns the segment that contains an address.
    pub const fn segment_of(&self, address: Address) -> SegmentId {
        SegmentId::new(address.get() / self.segment_blocks)
    }

    /// Returns the address of block `block` of segment `segment`.
    pub const fn address(&self, segment: SegmentId, block: u32) -> Address {
        Address::new(segment.get() * self.segment_blocks + block)
    }

    /// Returns the bytes of a segment.
    pub const fn segment_bytes(&self) -> u64 {
        self.segment_blocks as u64 * BLOCK_BYTES as u64
    }

    /// Returns the maximum payload blocks of a record of guest writes or copies. A record never
    /// crosses into another segment, and the unused end of a segment should be small.
    pub const fn record_payload_max(&self) -> u32 {
        let eighth = self.segment_blocks / 8;
        if eighth < 128 { eighth } else { 128 }
    }

    /// Returns the data blocks of a segment packed with full records; the last block is for the
    /// seal. Cleaning a segment with this many live blocks frees nothing.
    pub const fn data_blocks_packed(&self) -> u32 {
        let payload = self.record_payload_max();
        (self.segment_blocks - 1) / (payload + 1) * payload
    }

    /// Returns the data blocks of a segment whose last record is as long as fits, like those of
    /// copies, which are built after their place is known.
    pub const fn data_blocks_most(&self) -> u32 {
        let usable = self.segment_blocks - 1;
        usable - usable.div_ceil(self.record_payload_max() + 1)
    }

    /// Returns the minimum number of blocks that cleaning a segment must free to be worth the wear.
    /// A victim's last record is seldom full: in small segments, freeing less than a record would
    /// free nothing, for ever.
    pub const fn cleaning_gain_min(&self) -> u32 {
        let share = self.data_blocks_packed() / 100 * GAIN_PERCENT;
        let record = self.record_payload_max();
        if share > record { share } else { record }
    }

    /// Returns the number of segments that a disk of `blocks` blocks needs, including segment 0;
    /// `None` if there are too few addresses.
    pub fn segments_for(&self, blocks: u64) -> Option<u32> {
        let segment = u64::from(self.segment_blocks);
        let share = 100 - u64::from(self.reserve_percent);
        let packed = u64::from(self.data_blocks_packed());
        // The reserve has all that is not data: spare segments, the map, and what cleaning gains.
        let count = 1 + blocks.checked_mul(100)?.div_ceil(share).div_ceil(packed);
        // If every segment had too many live blocks to be cleaned, together they would hold more
        // than the disk: so there is always one that can be cleaned.
        let too_full = blocks.div_ceil(packed - u64::from(self.cleaning_gain_min()));
        let least = |segments| 1 + too_full + self.segments_besides_data(blocks, segments);
        // Twice, since the map's root names the segments.
        let enough = count.max(least(least(count)));
        let count = mutated("log.shape.trusts-any-reserve", enough, count);
        (count.checked_mul(segment)? <= 1 << 32).then_some(u32::try_from(count).ok()?)
    }

    /// Returns the segments needed besides those with data that are too full to be cleaned, so that
    /// writes never wait for ever: the sum in docs/format.md section 9.
    fn segments_besides_data(&self, blocks: u64, segments: u64) -> u64 {
        let leaves = blocks.div_ceil(LEAF_BLOCKS);
        let root = root_blocks(leaves, segments + 1);
        let map = self.map_segments_full(leaves, root) + self.checkpoint_segments(leaves, root);
        map + 3 * u64::from(self.streams) + UPKEEP_SEGMENTS
    }

    /// Returns the segments of a map of `leaves` leaves, when each is too full to be cleaned.
    pub fn map_segments_full(&self, leaves: u64, root_blocks: u64) -> u64 {
        let blocks = leaves * u64::from(LEAF_ON_DISK_BLOCKS) + root_blocks;
        blocks / u64::from(self.data_blocks_packed() - self.cleaning_gain_min())
    }

    /// Returns whether the map root of a disk of `blocks` blocks fits in a record. The root is the
    /// only structure that grows with the disk and must be contiguous.
    pub fn root_fits(&self, blocks: u64) -> bool {
        let Some(segments) = self.segments_for(blocks) else { return false };
        root_blocks(blocks.div_ceil(LEAF_BLOCKS), u64::from(segments)) + 2
            <= u64::from(self.segment_blocks)
    }

    /// Returns the maximum number of segments of an image of a disk of `blocks` blocks: all need an
    /// address, and the map root, which must be contiguous, names those in use.
    pub fn segments_most(&self, blocks: u64) -> u32 {
        let addresses = (1u64 << 32) / u64::from(self.segment_blocks);
        let root_bytes = u64::from(self.segment_blocks).saturating_sub(2) * BLOCK_BYTES as u64;
        let leaves = blocks.div_ceil(LEAF_BLOCKS) * ROOT_LEAF_BYTES;
        let named = root_bytes.saturating_sub(ROOT_HEADER_BYTES + leaves) / ROOT_SEGMENT_BYTES;
        addresses.min(named) as u32
    }

    /// Returns the maximum number of segments of a checkpoint that writes `leaves` leaves and a
    /// root.
    pub fn checkpoint_segments(&self, leaves: u64, root_blocks: u64) -> u64 {
        let leaf = u64::from(LEAF_ON_DISK_BLOCKS);
        let leaves_per_record = (u64::from(self.record_payload_max()) / leaf).max(1);
        // The last block is for the seal.
        let usable = u64::from(self.segment_blocks) - 1;
        let leaves_per_segment = usable / (1 + leaves_per_record * leaf) * leaves_per_record;
        let rest = leaves % leaves_per_segment;
        let last = rest * leaf + rest.div_ceil(leaves_per_record) + 1 + root_blocks;
        leaves / leaves_per_segment + if last <= usable { 1 } else { 2 }
    }

    /// Returns the default segment size: it follows the drive's erase units, as far as the disk has
    /// enough of those.
    pub fn default_segment_bytes(capacity_bytes: u64, unit: EraseUnit) -> u64 {
        let wanted = (capacity_bytes / SEGMENTS_PER_DISK).clamp(1 << 20, SEGMENT_DEFAULT_MAX);
        let wanted = wanted.next_power_of_two().min(SEGMENT_DEFAULT_MAX);
        let most = 1 << (capacity_bytes / SEGMENTS_LEAST).max(1).ilog2();
        let follows = unit.segment_bytes().min(most).min(SEGMENT_BYTES.end);
        let mut bytes = wanted.max(follows);
        while bytes < SEGMENT_BYTES.end && !Self::fits_disk(bytes, capacity_bytes) {
            bytes *= 2;
        }
        bytes
    }

    fn fits_disk(segment_bytes: u64, capacity_bytes: u64) -> bool {
        let shape = Self {
            segment_blocks: (segment_bytes / BLOCK_BYTES as u64) as u32,
            reserve_percent: RESERVE_DEFAULT_PERCENT,
            streams: 1,
        };
        shape.root_fits(blocks_of(capacity_bytes))
    }
}

/// Returns the blocks of a disk; its end may cut the last one short.
pub const fn blocks_of(capacity_bytes: u64) -> u64 {
    capacity_bytes.div_ceil(BLOCK_BYTES as u64)
}

/// Returns the blocks of a disk of `sectors` sectors.
pub const fn blocks_of_sectors(sectors: u64) -> u64 {
    sectors.div_ceil(BLOCK_SECTORS)
}

/// Returns the blocks of a root with `leaves` leaves and `segments` segments.
pub const fn root_blocks(leaves: u64, segments: u64) -> u64 {
    let bytes = ROOT_HEADER_BYTES + leaves * ROOT_LEAF_BYTES + segments * ROOT_SEGMENT_BYTES;
    bytes.div_ceil(BLOCK_BYTES as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn default_segments_grow_with_the_disk_up_to_a_point() {
        let small = EraseUnit::choose(Some(4096), None);
        for (capacity, segment) in [
            (512, 1 << 20),
            (GIB, 2 << 20),
            (8 * GIB, 16 << 20),
            (100 * GIB, 32 << 20),
            (1024 * GIB, 32 << 20),
        ] {
            assert_eq!(Shape::default_segment_bytes(capacity, small), segment, "{capacity}");
        }
    }

    #[test]
    fn default_segments_follow_erase_units_where_the_disk_has_enough_of_them() {
        for (capacity, unit, segment) in [
            (64 << 20, 32 << 20, 1 << 20),
            (GIB, 32 << 20, 8 << 20),
            (10 * GIB, 32 << 20, 64 << 20),
            (16 * GIB, 32 << 20, 128 << 20),
            (100 * GIB, 32 << 20, 128 << 20),
            (100 * GIB, 24 << 20, 128 << 20),
            (100 * GIB, 1 << 20, 32 << 20),
            (1024 * GIB, 1 << 30, GIB),
        ] {
            let unit = EraseUnit::choose(Some(unit), None);
            let chosen = Shape::default_segment_bytes(capacity, unit);
            assert_eq!(chosen, segment, "{capacity} {unit:?}");
        }
    }

    #[test]
    fn the_reserve_has_the_spare_segments_and_the_map() {
        let shape = Shape { segment_blocks: 8192, reserve_percent: 20, streams: 1 };
        let segments = shape.segments_for(blocks_of(100 * GIB)).unwrap();
        // 100 GiB / 0.8 in segments of 32 MiB is 4000; headers add 64, the superblocks one.
        assert_eq!(segments, 4065);
        // 256 segments of data: a fifth of the image is all that is beyond them.
        let disk = 256 * u64::from(shape.data_blocks_packed());
        assert_eq!(shape.segments_for(disk), Some(1 + 256 * 100 / 80));
        // No reserve is less than what the written argument needs.
        let shape = Shape { reserve_percent: 3, ..shape };
        let too_full = shape.data_blocks_packed() - shape.cleaning_gain_min();
        let data = disk.div_ceil(too_full.into()) as u32;
        assert_eq!(shape.segments_for(disk), Some(1 + data + 12));
    }

    /// What the written argument needs was cut off at the last address.
    #[test]
    fn a_disk_without_room_for_its_spare_segments_has_no_count() {
        let shape = Shape { segment_blocks: 1 << 18, reserve_percent: 3, streams: 1 };
        assert_eq!(shape.segments_for(4_133_318_184), None);
        assert!(shape.segments_for(4_100_000_000).is_some_and(|it| it <= 1 << 14));
    }

    #[test]
    fn roots_fit() {
        let shape = Shape { segment_blocks: 8192, reserve_percent: 20, streams: 1 };
        assert!(shape.root_fits(blocks_of(100 * GIB)));
        assert_eq!(shape.segments_for(1 << 33), None);
    }

    #[test]
    fn as_many_segments_as_the_root_can_name() {
        for segment_blocks in [64, 8192] {
            let shape = Shape { segment_blocks, reserve_percent: 20, streams: 1 };
            let blocks = blocks_of(GIB);
            let most = u64::from(shape.segments_most(blocks));
            let root = |segments| root_blocks(blocks.div_ceil(LEAF_BLOCKS), segments) + 2;
            assert!(root(most) <= u64::from(segment_blocks));
            let addresses = (1 << 32) / u64::from(segment_blocks);
            assert!(most == addresses || root(most + 1) > u64::from(segment_blocks));
        }
    }

    #[test]
    fn a_checkpoint_takes_what_its_records_take() {
        let shape = Shape { segment_blocks: 64, reserve_percent: 20, streams: 1 };
        // Two leaves per record, seven records per segment.
        for (leaves, root, segments) in
            [(0, 1, 1), (1, 1, 1), (13, 1, 1), (14, 1, 2), (14, 62, 2), (15, 58, 3), (200, 54, 16)]
        {
            assert_eq!(shape.checkpoint_segments(leaves, root), segments, "{leaves} {root}");
        }
    }

    /// With 3 percent in small segments, every segment could be too full to be cleaned, and a full
    /// disk refused to be overwritten.
    #[test]
    fn one_segment_of_a_full_disk_can_always_be_cleaned() {
        for segment_blocks in [64, 256, 1024, 2048, 4096, 8192, 1 << 18] {
            let shape = Shape { segment_blocks, reserve_percent: 3, streams: 1 };
            let blocks = blocks_of(64 * GIB);
            let Some(segments) = shape.segments_for(blocks) else { continue };
            let too_full = shape.data_blocks_packed() - shape.cleaning_gain_min();
            assert!(u64::from(segments) * u64::from(too_full) > blocks, "{segment_blocks}");
        }
    }

    /// Headers and seals take a fourth of the smallest segments: found by tests/vm full_disk,
    /// where a disk that was 94 % full had no room left for random overwrites.
    #[test]
    fn the_reserve_of_small_segments_is_beyond_their_headers() {
        for segment_blocks in [64, 128, 256, 8192] {
            let shape = Shape { segment_blocks, reserve_percent: 10, streams: 1 };
            let blocks = blocks_of(GIB);
            let segments = u64::from(shape.segments_for(blocks).unwrap());
            let packed = blocks.div_ceil(u64::from(shape.data_blocks_packed()));
            assert!(segments * 9 / 10 >= packed, "{segment_blocks}: {segments} for {packed}");
        }
    }
}
