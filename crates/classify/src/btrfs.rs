//! btrfs: its superblocks. Its trees are copy-on-write; the layout keeps what identifies their
//! nodes.
//!
//! Source: Linux, include/uapi/linux/btrfs_tree.h (`btrfs_super_block`).
//! Everything is little-endian.

use flowstone_block::Class;

use crate::fields::{array, le32, le64, text};
use crate::layout::{BTRFS_AT, Builder, Nodes};
use crate::volume::{Scan, Volume};

/// The part of a superblock that is parsed.
const SUPERBLOCK_BYTES: usize = 1024;
/// The space reserved for a superblock.
const SUPERBLOCK_ROOM: u64 = 4096;
/// Offsets of the superblock and of its copies, as far as the volume reaches.
const SUPERBLOCKS_AT: [u64; 3] = [BTRFS_AT, 64 << 20, 256 << 30];
const MAGIC: [u8; 8] = *b"_BHRfS_M";
/// Blocks have the UUID of the metadata instead of the file system's.
const INCOMPAT_METADATA_UUID: u64 = 1 << 10;

/// The parsed fields of a superblock.
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
    // The superblock itself is rewritten with each commit, so it is no definer. Whatever replaces
    // the file system begins before it, and mkfs of btrfs clears the beginning, too.
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
        let label = text(&bytes[299..555]);
        // The size of this device: the file system may have others.
        let superblock = Self { bytes: le64(bytes, 209), nodes, label };
        (superblock.bytes > 0 && nodes.are_plausible()).then_some(superblock)
    }
}
