//! btrfs: its superblocks, and how the blocks of its trees are known.
//!
//! Source: Linux, include/uapi/linux/btrfs_tree.h (`btrfs_super_block`, `btrfs_header`).
//! Everything is little-endian. Trees move with each change, but each node begins with a header
//! that names the file system.

use flowstone_block::Class;

use crate::fields::{array, le32, le64};
use crate::layout::Builder;
use crate::volume::{Scan, Volume};

/// As much of a superblock as matters here.
const SUPERBLOCK_BYTES: usize = 1024;
/// What a superblock takes.
const SUPERBLOCK_ROOM: u64 = 4096;
/// Where it is, and its copies, as far as the volume reaches.
pub const SUPERBLOCKS_AT: [u64; 3] = [64 << 10, 64 << 20, 256 << 30];
const MAGIC: [u8; 8] = *b"_BHRfS_M";
/// Blocks have the metadata's own UUID in place of the file system's.
const INCOMPAT_METADATA_UUID: u64 = 1 << 10;
const NODE_BYTES_MAX: u64 = 64 << 10;
/// As much of a node as tells what it is.
pub const HEADER_BYTES: usize = 101;
/// A tree has no more levels.
const LEVEL_MAX: u8 = 7;
/// An entry takes that much at least.
const ENTRY_BYTES_MIN: u64 = 25;
/// The most nodes that a write may consist of.
const NODES_MAX: u64 = 256;

/// What each node of a file system's trees has in its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nodes {
    uuid: [u8; 16],
    sector_bytes: u64,
    /// Size of a node.
    pub node_bytes: u64,
}

/// What a superblock says, as far as it matters here.
struct Superblock {
    bytes: u64,
    nodes: Nodes,
    label: String,
}

/// Adds the file system on `volume` to the layout; `None` if there is none.
pub fn read(volume: &Volume, scan: &mut Scan<'_>, depth: u8, layout: &mut Builder) -> Option<()> {
    let bytes: [u8; SUPERBLOCK_BYTES] = volume.read_array(scan, SUPERBLOCKS_AT[0])?;
    let superblock = Superblock::parse(&bytes).filter(|it| it.bytes <= volume.bytes())?;
    let volume = volume.part(0, superblock.bytes);
    // Its superblock is written with each commit. What replaces it begins before that, and mkfs of
    // btrfs clears the beginning, too.
    layout.beginning(&volume);
    layout.file_system(&volume, superblock.bytes);
    layout.found("btrfs", &volume, depth, &superblock.label);
    for start in SUPERBLOCKS_AT {
        let end = start + SUPERBLOCK_ROOM;
        if end <= superblock.bytes {
            layout.counted(Class::Metadata, SUPERBLOCK_ROOM);
            layout.region(&volume, start..end, Class::Metadata);
        }
    }
    layout.trees(&volume, superblock.nodes);
    Some(())
}

impl Superblock {
    fn parse(bytes: &[u8; SUPERBLOCK_BYTES]) -> Option<Self> {
        if bytes[64..72] != MAGIC {
            return None;
        }
        let has_uuid_of_metadata = le64(bytes, 188) & INCOMPAT_METADATA_UUID != 0;
        let uuid = array(bytes, if has_uuid_of_metadata { 571 } else { 32 });
        let nodes = Nodes {
            uuid,
            sector_bytes: le32(bytes, 144).into(),
            node_bytes: le32(bytes, 148).into(),
        };
        let label = bytes[299..555].split(|byte| *byte == 0).next().unwrap_or_default();
        let label = String::from_utf8_lossy(label).replace(char::is_control, "?");
        // The device's own size: others may belong to the file system.
        let superblock = Self { bytes: le64(bytes, 209), nodes, label };
        (superblock.bytes > 0 && nodes.are_plausible()).then_some(superblock)
    }
}

impl Nodes {
    fn are_plausible(&self) -> bool {
        let power =
            |value: u64| value.is_power_of_two() && (4096..=NODE_BYTES_MAX).contains(&value);
        power(self.sector_bytes) && power(self.node_bytes)
    }

    /// How many nodes a write of so many bytes may consist of.
    pub fn count_in(&self, bytes: u64) -> Option<usize> {
        let count = bytes / self.node_bytes;
        let is_whole = bytes.is_multiple_of(self.node_bytes) && (1..=NODES_MAX).contains(&count);
        is_whole.then_some(usize::try_from(count).ok()?)
    }

    /// Whether this is the header of one of them.
    pub fn begin_with(&self, header: &[u8; HEADER_BYTES]) -> bool {
        let (address, generation) = (le64(header, 48), le64(header, 80));
        let (entries, level) = (u64::from(le32(header, 96)), header[100]);
        header[32..48] == self.uuid
            && address.is_multiple_of(self.sector_bytes)
            && header[64..80] != [0; 16]
            && generation > 0
            && level <= LEVEL_MAX
            && entries <= self.node_bytes / ENTRY_BYTES_MIN
    }
}
