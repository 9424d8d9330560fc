//! Classes of records by how long their blocks are expected to live; a stream of the log each.

/// Highest class of guest data: its streams have classes 0 and 1.
pub const LIFETIME_GUEST_MAX: u8 = 1;
/// Copies of blocks that were cleaned for the first time.
pub const LIFETIME_CLEANED: u8 = 2;
/// Copies of copies, the youngest class by age of their blocks.
pub const LIFETIME_WARM: u8 = 3;
/// Copies of copies, older.
pub const LIFETIME_COOL: u8 = 4;
/// Copies of copies, oldest.
pub const LIFETIME_COLD: u8 = 5;
/// Data sorted by `compact` or re-sorting.
pub const LIFETIME_SORTED: u8 = 6;
/// Leaves and roots of the map.
pub const LIFETIME_MAP: u8 = 7;
/// Number of classes.
pub const LIFETIMES: usize = 8;
