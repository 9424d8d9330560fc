//! Numbers of the virtio and virtio-blk specifications used by the kit.
//!
//! Plain constants, so that tests can mask, combine and corrupt them.

/// Maximum size of any single segment is in `size_max`.
pub const F_SIZE_MAX: u64 = 1 << 1;
/// Maximum number of segments in a request is in `seg_max`.
pub const F_SEG_MAX: u64 = 1 << 2;
/// Disk geometry is in `geometry`.
pub const F_GEOMETRY: u64 = 1 << 4;
/// The device is read-only.
pub const F_RO: u64 = 1 << 5;
/// Block size is in `blk_size`.
pub const F_BLK_SIZE: u64 = 1 << 6;
/// FLUSH is supported.
pub const F_FLUSH: u64 = 1 << 9;
/// Topology fields are valid.
pub const F_TOPOLOGY: u64 = 1 << 10;
/// The driver may toggle the write cache through `wce`.
pub const F_CONFIG_WCE: u64 = 1 << 11;
/// More than one request queue.
pub const F_MQ: u64 = 1 << 12;
/// DISCARD is supported.
pub const F_DISCARD: u64 = 1 << 13;
/// WRITE_ZEROES is supported.
pub const F_WRITE_ZEROES: u64 = 1 << 14;
/// Indirect descriptor tables.
pub const F_INDIRECT_DESC: u64 = 1 << 28;
/// `used_event` and `avail_event` instead of flags.
pub const F_EVENT_IDX: u64 = 1 << 29;
/// vhost-user protocol features follow (never seen by a real driver).
pub const F_PROTOCOL_FEATURES: u64 = 1 << 30;
/// Modern device.
pub const F_VERSION_1: u64 = 1 << 32;

/// Features that QEMU 7.2 offers for vhost-user-blk and a modern driver acknowledges.
pub const F_DEFAULT: u64 = F_SEG_MAX
    | F_SIZE_MAX
    | F_GEOMETRY
    | F_RO
    | F_BLK_SIZE
    | F_FLUSH
    | F_TOPOLOGY
    | F_CONFIG_WCE
    | F_MQ
    | F_DISCARD
    | F_WRITE_ZEROES
    | F_INDIRECT_DESC
    | F_EVENT_IDX
    | F_PROTOCOL_FEATURES
    | F_VERSION_1;

/// Read request.
pub const T_IN: u32 = 0;
/// Write request.
pub const T_OUT: u32 = 1;
/// Flush request.
pub const T_FLUSH: u32 = 4;
/// Identity request; the answer is 20 bytes of text.
pub const T_GET_ID: u32 = 8;
/// Discard request; the payload is a list of ranges.
pub const T_DISCARD: u32 = 11;
/// Write-zeroes request; the payload is a list of ranges.
pub const T_WRITE_ZEROES: u32 = 13;

/// Size of the identity text.
pub const ID_BYTES: usize = 20;
/// Size of the request header: type, ioprio, sector.
pub const HEADER_BYTES: usize = 16;
/// Size of one range of a discard or write-zeroes request.
pub const RANGE_BYTES: usize = 16;
/// Size of a sector; every sector number of virtio-blk counts these.
pub const SECTOR_BYTES: u64 = 512;
/// Flag in a write-zeroes range: the device may unmap.
pub const RANGE_UNMAP: u32 = 1;

/// Descriptor flag: the chain continues at `next`.
pub const DESC_NEXT: u16 = 1;
/// Descriptor flag: the device writes to this buffer.
pub const DESC_WRITE: u16 = 2;
/// Descriptor flag: the buffer is a table of descriptors.
pub const DESC_INDIRECT: u16 = 4;
/// `avail.flags`: the driver wants no calls.
pub const AVAIL_NO_INTERRUPT: u16 = 1;
/// `used.flags`: the device wants no kicks.
pub const USED_NO_NOTIFY: u16 = 1;
