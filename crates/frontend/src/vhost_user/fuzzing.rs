//! Fixtures of the fuzz targets: a ring over plain memory, and a device without a socket.

use std::fs::File;
use std::io;
use std::sync::Arc;

use flowstone_block::{Geometry, SectorCount};

pub use super::device::Device;
pub use super::inflight::InflightRegion;
use super::memory::{GuestMemory, RegionAddresses};
use super::protocol::ID_BYTES;
pub use super::protocol::REQUEST_BYTES_MAX;
use super::queue::{QueueParts, VirtQueue};
use super::ring::{RingAddresses, SplitRing};
use super::shared::DeviceShared;

/// The size of the small disk behind the queue.
pub const DISK: SectorCount = SectorCount::new(1 << 12);

/// Makes the in-flight log of one queue, which outlives the queues that use it.
pub fn log_for(size: u16) -> io::Result<Arc<InflightRegion>> {
    let bytes = InflightRegion::bytes_for(1, size);
    InflightRegion::map(InflightRegion::create(bytes)?, 0, bytes, 1, size)
}

/// Makes a queue over a disk of `capacity` and an in-flight log. Ring and guest memory are the
/// first `bytes` bytes of `file`, at address 0 for both guest and monitor. The descriptor table is
/// at 0, the avail ring follows it, and the used ring is at the next multiple of 4.
pub fn queue_over(
    file: File,
    bytes: u64,
    size: u16,
    event_idx: bool,
    kick: File,
    capacity: SectorCount,
    log: &Arc<InflightRegion>,
) -> io::Result<VirtQueue> {
    let mut parts = parts_over(file, bytes, size, event_idx, kick)?;
    parts.shared = Arc::new(DeviceShared::new(capacity));
    Ok(VirtQueue::new(parts, Arc::default(), log.log(0, size)))
}

/// Makes the parts of such a queue.
pub(super) fn parts_over(
    file: File,
    bytes: u64,
    size: u16,
    event_idx: bool,
    kick: File,
) -> io::Result<QueueParts> {
    let addresses = RegionAddresses { guest: 0, monitor: 0, bytes };
    let memory = Arc::new(GuestMemory::default().with_region(addresses, file, 0)?);
    let avail = 16 * u64::from(size);
    let used = (avail + 6 + 2 * u64::from(size)).next_multiple_of(4);
    let at = RingAddresses { descriptors: 0, avail, used };
    let ring = SplitRing::new(memory, size, event_idx, at)
        .map_err(|bad| io::Error::other(format!("{bad:?}")))?;
    Ok(QueueParts {
        ring,
        next_avail: 0,
        kick: Arc::new(kick),
        error: None,
        broken: Arc::default(),
        shared: Arc::new(DeviceShared::new(DISK)),
        geometry: Geometry::with_capacity(DISK),
        id: [0; ID_BYTES],
    })
}
