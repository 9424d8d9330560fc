//! On-disk structures of log images, without I/O: what docs/format.md specifies.
//!
//! From the bottom up: `address` and `ids`, `record` (headers, entries and their codec), `head`
//! (where records are appended), their `lifetime`s and `record_builder`, `shape` (derived sizes),
//! `erase_unit`, `superblock` and its `slots`, and `root` (the list of the map's leaves).

mod address;
mod erase_unit;
mod head;
mod ids;
mod lifetime;
mod record;
mod record_builder;
mod root;
mod shape;
mod slots;
mod superblock;

pub use address::{Address, BLOCK_BYTES, BLOCK_SECTORS, MapEntry};
pub use erase_unit::{ERASE_UNIT_BYTES, EraseUnit, UnitSource};
pub use head::{HeadPlace, Placed, Stamp};
pub use ids::{Incarnation, SegmentId, Sequence};
pub use lifetime::{
    LIFETIME_CLEANED, LIFETIME_COLD, LIFETIME_COOL, LIFETIME_GUEST_MAX, LIFETIME_MAP,
    LIFETIME_SORTED, LIFETIME_WARM, LIFETIMES,
};
pub use record::{Codec, ENTRIES_MAX, Entry, Header, Kind, LEAF_ON_DISK_BLOCKS, TRIM_BLOCKS_MAX};
pub use record_builder::RecordBuilder;
pub use root::{Bounds, LeafPlace, Root, SegmentNote};
pub use shape::{
    LEAF_BLOCKS, RESERVE_DEFAULT_PERCENT, RESERVE_PERCENT, SEGMENT_BYTES, Shape, blocks_of,
    blocks_of_sectors, root_blocks,
};
pub use slots::{STREAMS_MAX, Slots, lost_slot, newest};
pub use superblock::{
    HEADS, RootPlace, SLOTS, SUPERBLOCK_AREA_BYTES, Superblock, SuperblockError, Totals, VERSION,
};
