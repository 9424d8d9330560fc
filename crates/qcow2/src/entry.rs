//! Entries of L1 and L2 tables: eight bytes each, an offset and flags.

use super::shape::{HostCluster, Shape};

/// The cluster has a reference count of one, and may be written in place.
pub const COPIED: u64 = 1 << 63;
const COMPRESSED: u64 = 1 << 62;
/// The cluster reads as zeroes, whatever the backing file holds (version 3).
pub const ZERO: u64 = 1;
const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;

/// Meaning of an L2 entry for a cluster of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapping {
    /// Not in this image: read from the backing file, or zero without one.
    Unallocated,
    /// Zeroes; a host cluster may be reserved for it.
    Zero { reserved: Option<HostCluster> },
    /// Data. If the host cluster is shared (not `ours`), it must not be written in place.
    Data { host: HostCluster, ours: bool },
    /// Deflated data, at any byte offset of the file.
    Compressed(Compressed),
}

impl Mapping {
    /// Returns whether the image itself has data for the cluster.
    pub const fn holds_data(&self) -> bool {
        matches!(self, Self::Data { .. } | Self::Compressed(_))
    }

    /// Returns the host clusters that it names; each has a reference for it.
    pub fn hosts(self, shape: Shape) -> impl Iterator<Item = HostCluster> {
        let clusters = match self {
            Self::Data { host, .. } | Self::Zero { reserved: Some(host) } => host.0..host.0 + 1,
            Self::Compressed(Compressed { offset, bytes }) => {
                shape.host_at(offset).0..shape.host_at(offset + bytes - 1).0 + 1
            }
            Self::Unallocated | Self::Zero { reserved: None } => 0..0,
        };
        clusters.map(HostCluster)
    }
}

/// Position of deflated data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compressed {
    /// Its first byte in the host file.
    pub offset: u64,
    /// Bytes to read; the deflated data may end earlier.
    pub bytes: u64,
}

/// An entry that no software writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadEntry(pub u64);

/// Decodes an L2 entry.
pub fn decode(shape: Shape, entry: u64) -> Result<Mapping, BadEntry> {
    if entry & COMPRESSED != 0 {
        return decode_compressed(shape, entry).map(Mapping::Compressed);
    }
    let host = cluster(shape, entry)?;
    let zero = shape.version >= 3 && entry & ZERO != 0;
    Ok(match (zero, host) {
        (true, reserved) => Mapping::Zero { reserved },
        (false, None) => Mapping::Unallocated,
        (false, Some(host)) => Mapping::Data { host, ours: entry & COPIED != 0 },
    })
}

/// Returns the cluster that an L1 entry, or an uncompressed L2 entry, names.
pub fn cluster(shape: Shape, entry: u64) -> Result<Option<HostCluster>, BadEntry> {
    let offset = entry & OFFSET;
    if !offset.is_multiple_of(shape.cluster_bytes()) {
        return Err(BadEntry(entry));
    }
    Ok((offset != 0).then(|| shape.host_at(offset)))
}

/// Returns the entry of a cluster that is not shared.
pub fn ours(shape: Shape, host: HostCluster) -> u64 {
    COPIED | shape.offset(host)
}

/// Decodes the low bits as host offset, the rest as number of additional 512-byte sectors.
fn decode_compressed(shape: Shape, entry: u64) -> Result<Compressed, BadEntry> {
    let sector_bits = shape.cluster_bits - 8;
    let offset_bits = 62 - sector_bits;
    let offset = entry & ((1 << offset_bits) - 1);
    let sectors = (entry >> offset_bits) & ((1 << sector_bits) - 1);
    if offset == 0 || offset > OFFSET {
        return Err(BadEntry(entry));
    }
    Ok(Compressed { offset, bytes: (sectors + 1) * 512 - offset % 512 })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { version: 3, cluster_bits: 16, refcount_order: 4 };

    #[test]
    fn entries_mean_what_the_specification_says() {
        let host = HostCluster(5);
        assert_eq!(decode(SHAPE, 0), Ok(Mapping::Unallocated));
        assert_eq!(decode(SHAPE, ZERO), Ok(Mapping::Zero { reserved: None }));
        assert_eq!(decode(SHAPE, 0x5_0001), Ok(Mapping::Zero { reserved: Some(host) }));
        assert_eq!(decode(SHAPE, 0x5_0000), Ok(Mapping::Data { host, ours: false }));
        assert_eq!(decode(SHAPE, ours(SHAPE, host)), Ok(Mapping::Data { host, ours: true }));
        assert_eq!(decode(SHAPE, 0x5_0200), Err(BadEntry(0x5_0200)));
        let old = Shape { version: 2, ..SHAPE };
        assert_eq!(decode(old, 0x5_0001), Ok(Mapping::Data { host, ours: false }));
    }

    #[test]
    fn compressed_data_may_begin_and_end_anywhere() {
        let entry = COMPRESSED | 3 << 54 | 0x1_fe10;
        let Ok(Mapping::Compressed(found)) = decode(SHAPE, entry) else { panic!() };
        assert_eq!(found, Compressed { offset: 0x1_fe10, bytes: 4 * 512 - 0x10 });
        let hosts: Vec<_> = Mapping::Compressed(found).hosts(SHAPE).collect();
        assert_eq!(hosts, [HostCluster(1), HostCluster(2)]);
        assert!(decode(SHAPE, COMPRESSED).is_err());
    }
}
