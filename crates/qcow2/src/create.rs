//! Creates an image: header, refcount table and blocks, L1 table; with preallocation also the L2
//! tables, with clusters that the host allocates when they are written.

use std::path::PathBuf;

use flowstone_block::{Error, Outcome, Result, SectorCount};
use flowstone_fileio::{BlockingFile, FileIo, FileOffset};
use flowstone_image::Format;

use super::entry;
use super::header::{BackingName, Header, HeaderError};
use super::map::to_bytes;
use super::refcounts::put_refcount;
use super::shape::{CLUSTER_BITS, CLUSTER_DEFAULT_BYTES, HostCluster, Shape};

/// Options for creating a qcow2 image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Qcow2Options {
    /// Bytes of a cluster: a power of two from 512 to 2 MiB; default 64 KiB.
    pub cluster_bytes: Option<u64>,
    /// Whether to create the L2 tables now, with a host cluster for every guest cluster.
    pub preallocate: bool,
    /// Backing file with the initial content of the disk.
    pub backing: Option<Backing>,
}

/// A backing file for a new image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backing {
    /// Path as stored in the image; relative to the image's directory.
    pub path: PathBuf,
    /// Its format.
    pub format: Format,
}

/// Position of the refcount table of a new image, in clusters: behind the header.
const TABLE: u64 = 1;

/// Positions of the other parts of a new image, in clusters, in their order; each ends where the
/// next one begins.
struct Layout {
    shape: Shape,
    /// Clusters that the refcount table takes.
    table_clusters: u64,
    first_block: u64,
    l1: u64,
    l1_entries: u64,
    first_l2: u64,
    first_data: u64,
    end: u64,
}

impl Layout {
    fn new(shape: Shape, disk_bytes: u64, preallocate: bool) -> Self {
        let l1_entries = shape.l1_entries(disk_bytes);
        let l1_clusters = shape.clusters(l1_entries * 8);
        let (l2_tables, data) =
            if preallocate { (l1_entries, shape.clusters(disk_bytes)) } else { (0, 0) };
        let others = 1 + l1_clusters + l2_tables + data;
        // Blocks and table count themselves, so the size is found by iteration.
        let (mut table_clusters, mut blocks) = (1, 1);
        loop {
            let all = others + table_clusters + blocks;
            let needed = all.div_ceil(shape.block_refcounts());
            let table_needed = shape.clusters(needed * 8);
            if needed <= blocks && table_needed <= table_clusters {
                break;
            }
            (blocks, table_clusters) = (needed.max(blocks), table_needed.max(table_clusters));
        }
        let first_block = TABLE + table_clusters;
        let l1 = first_block + blocks;
        let first_l2 = l1 + l1_clusters;
        let first_data = first_l2 + l2_tables;
        let end = first_data + data;
        Self { shape, table_clusters, first_block, l1, l1_entries, first_l2, first_data, end }
    }

    fn offset(&self, cluster: u64) -> u64 {
        self.shape.offset(HostCluster(cluster))
    }
}

/// Writes a new image into `file`, which is empty.
pub fn create(
    name: &str,
    file: &dyn FileIo,
    capacity: SectorCount,
    options: &Qcow2Options,
) -> Result<()> {
    let invalid = |why: &str, advice: &'static str| Error::invalid(name, why.to_owned(), advice);
    let cluster_bytes = options.cluster_bytes.unwrap_or(CLUSTER_DEFAULT_BYTES);
    let cluster_bits = cluster_bytes.trailing_zeros();
    if !cluster_bytes.is_power_of_two() || !CLUSTER_BITS.contains(&cluster_bits) {
        let why = "a cluster is a power of two from 512 to 2M";
        return Err(invalid(why, "give a --cluster-size such as 64K"));
    }
    let shape = Shape { version: 3, cluster_bits, refcount_order: 4 };
    let backing = options.backing.as_ref().map(|backing| BackingName {
        name: backing.path.display().to_string(),
        format: Some(backing.format.name().to_owned()),
    });
    if backing.as_ref().is_some_and(|backing| !Header::has_room_for(shape, &backing.name)) {
        let why = "the name of its backing file does not fit into the first cluster";
        return Err(invalid(why, "use a shorter path or larger clusters"));
    }
    if backing.is_some() && options.preallocate {
        let why = "with a backing file, nothing can be preallocated";
        return Err(invalid(why, "leave out --preallocation or --backing"));
    }
    let layout = Layout::new(shape, capacity.bytes(), options.preallocate);
    let header = Header {
        shape,
        disk_bytes: capacity.bytes(),
        l1_offset: layout.offset(layout.l1),
        l1_entries: layout.l1_entries,
        refcount_table_offset: layout.offset(TABLE),
        refcount_table_clusters: layout.table_clusters,
        snapshots: 0,
        backing,
        autoclear: 0,
        corrupt: false,
    };
    // An image that opening would refuse must not be created.
    let mut first_cluster = header.encode();
    Header::decode(&padded(&first_cluster)).map_err(|error| {
        let why = match error {
            HeaderError::Damaged(flaw) => flaw.what,
            other => format!("{other:?}"),
        };
        Error::invalid(name, why, "choose a smaller --size or a larger --cluster-size")
    })?;
    let host = |error: std::io::Error| Error::host(name, error, "check the host's file system");
    file.set_size(layout.offset(layout.end)).map_err(host)?;
    let mut writer = BlockingFile::new(file).map_err(host)?;
    let written = write_tables(&mut writer, &layout)
        .and_then(|()| writer.sync())
        .and_then(|()| writer.write(FileOffset::new(0), &mut first_cluster))
        .and_then(|()| writer.sync());
    written.map_err(|errno| host(errno.into()))
}

/// Pads the header of an image with small clusters to the length that the decoder needs.
fn padded(cluster: &[u8]) -> Vec<u8> {
    let mut bytes = cluster.to_vec();
    bytes.resize(bytes.len().max(512), 0);
    bytes
}

/// Writes everything except the header, which makes the file an image.
fn write_tables(writer: &mut BlockingFile, layout: &Layout) -> Outcome {
    let shape = layout.shape;
    let cluster_bytes = shape.cluster_bytes() as usize;
    let mut put = |cluster: u64, mut bytes: Vec<u8>| {
        bytes.resize(bytes.len().next_multiple_of(cluster_bytes), 0);
        writer.write(FileOffset::new(layout.offset(cluster)), &mut bytes)
    };
    let blocks = layout.first_block..layout.l1;
    let entries: Vec<u64> = blocks.clone().map(|cluster| layout.offset(cluster)).collect();
    put(TABLE, to_bytes(&entries))?;
    for (index, block) in blocks.enumerate() {
        let first = index as u64 * shape.block_refcounts();
        let used = layout.end.saturating_sub(first).min(shape.block_refcounts());
        let mut bytes = vec![0; cluster_bytes];
        (0..used as usize).for_each(|slot| put_refcount(&mut bytes, shape.refcount_order, slot, 1));
        put(block, bytes)?;
    }
    let mut l1 = vec![0; layout.l1_entries as usize];
    let data = layout.end - layout.first_data;
    for index in 0..layout.first_data - layout.first_l2 {
        let home = layout.first_l2 + index;
        l1[index as usize] = entry::ours(shape, HostCluster(home));
        let first = index * shape.l2_entries();
        let clusters = first..data.min(first + shape.l2_entries());
        let entries: Vec<u64> = clusters
            .map(|cluster| entry::ours(shape, HostCluster(layout.first_data + cluster)))
            .collect();
        put(home, to_bytes(&entries))?;
    }
    put(layout.l1, to_bytes(&l1))
}
