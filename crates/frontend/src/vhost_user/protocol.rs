//! Numbers of the virtio-blk protocol (virtio 1.2, sections 2.7 and 5.2).

use flowstone_block::FILL_BYTES_MAX;

/// Feature bits that are offered or inspected.
pub mod feature {
    /// Largest size of one segment is in `size_max`.
    pub const SIZE_MAX: u64 = 1 << 1;
    /// Most segments of a request are in `seg_max`.
    pub const SEG_MAX: u64 = 1 << 2;
    /// The disk is read-only.
    pub const RO: u64 = 1 << 5;
    /// Logical block size is in `blk_size`.
    pub const BLK_SIZE: u64 = 1 << 6;
    /// Flush requests are understood.
    pub const FLUSH: u64 = 1 << 9;
    /// Physical block size and optimal I/O size are given.
    pub const TOPOLOGY: u64 = 1 << 10;
    /// The driver may switch between write-back and write-through.
    pub const CONFIG_WCE: u64 = 1 << 11;
    /// Several queues.
    pub const MQ: u64 = 1 << 12;
    /// Discard requests are understood.
    pub const DISCARD: u64 = 1 << 13;
    /// Write-zeroes requests are understood.
    pub const WRITE_ZEROES: u64 = 1 << 14;
    /// Indirect descriptor tables.
    pub const INDIRECT_DESC: u64 = 1 << 28;
    /// `used_event` and `avail_event` instead of flags.
    pub const EVENT_IDX: u64 = 1 << 29;
    /// Not virtio: the vhost-user protocol has its own feature bits.
    pub const VHOST_USER_PROTOCOL: u64 = 1 << 30;
    /// The device conforms to virtio 1.0 or later.
    pub const VERSION_1: u64 = 1 << 32;

    const NAMES: [(u64, &str); 14] = [
        (SIZE_MAX, "size_max"),
        (SEG_MAX, "seg_max"),
        (RO, "ro"),
        (BLK_SIZE, "blk_size"),
        (FLUSH, "flush"),
        (TOPOLOGY, "topology"),
        (CONFIG_WCE, "config_wce"),
        (MQ, "mq"),
        (DISCARD, "discard"),
        (WRITE_ZEROES, "write_zeroes"),
        (INDIRECT_DESC, "indirect_desc"),
        (EVENT_IDX, "event_idx"),
        (VHOST_USER_PROTOCOL, "vhost_user_protocol"),
        (VERSION_1, "version_1"),
    ];

    /// Returns the standard's names of these bits; covers all that are offered.
    pub fn names(bits: u64) -> Vec<&'static str> {
        NAMES.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, name)| *name).collect()
    }
}

/// Request types.
pub mod request_type {
    /// Read.
    pub const IN: u32 = 0;
    /// Write.
    pub const OUT: u32 = 1;
    /// Flush.
    pub const FLUSH: u32 = 4;
    /// Ask for the disk's identity string.
    pub const GET_ID: u32 = 8;
    /// Discard ranges.
    pub const DISCARD: u32 = 11;
    /// Zero ranges.
    pub const WRITE_ZEROES: u32 = 13;
}

/// The status byte that ends every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// Success.
    Ok = 0,
    /// I/O error.
    IoError = 1,
    /// Unsupported request.
    Unsupported = 2,
}

/// Descriptor flags.
pub mod descriptor_flag {
    /// The chain goes on at `next`.
    pub const NEXT: u16 = 1;
    /// The device writes to the buffer.
    pub const WRITE: u16 = 2;
    /// The buffer is a table of descriptors.
    pub const INDIRECT: u16 = 4;
}

/// In the avail ring's flags: do not interrupt.
pub const AVAIL_NO_INTERRUPT: u16 = 1;
/// In the used ring's flags: do not notify.
pub const USED_NO_NOTIFY: u16 = 1;

/// Bytes of a request header: type, I/O priority, sector.
pub const HEADER_BYTES: usize = 16;
/// Bytes of the identity string.
pub const ID_BYTES: usize = 20;
/// Bytes of one range of a discard or write-zeroes request.
pub const RANGE_BYTES: usize = 16;
/// In a range's flags: the space may be freed.
pub const RANGE_UNMAP: u32 = 1;

/// Most ranges of one discard or write-zeroes request.
pub const RANGES_MAX: u32 = 64;
/// Most sectors of one range: the largest multiple of 8 whose byte count fits in 32 bits, as
/// Linux's block layer needs.
pub const RANGE_SECTORS_MAX: u32 = (u32::MAX / 512) & !7;
/// Most sectors of a write-zeroes request whose zeroes the host has to write.
pub const FILLED_SECTORS_MAX: u32 = (FILL_BYTES_MAX / 512) as u32;
/// Most data segments of a request: a chain of these plus header and status fills QEMU's default
/// queue of 128.
pub const SEGMENTS_MAX: u32 = 126;
/// Largest segment.
pub const SEGMENT_BYTES_MAX: u32 = 4 << 20;
/// Most bytes of a request: a driver that keeps to the two limits above cannot ask for more.
/// Buffers may name the same memory repeatedly, so the size of guest memory is no bound.
pub const REQUEST_BYTES_MAX: u64 = SEGMENTS_MAX as u64 * SEGMENT_BYTES_MAX as u64;
/// Largest ring (virtio 1.2, section 2.7).
pub const QUEUE_SIZE_MAX: u16 = 32768;
