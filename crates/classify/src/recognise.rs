//! Reads the layout of a disk: partition table, logical volumes, file systems.

use crate::layout::{Builder, Layout};
use crate::volume::{ReadBytes, Scan, Volume};
use crate::{btrfs, ext4, lvm, partitions, xfs};

/// Offset of the labels of md (metadata 1.2, its default) and bcache.
const MEMBER_LABEL_AT: u64 = 4096;
const MD_MAGIC: [u8; 4] = 0xa92b_4efc_u32.to_le_bytes();
const BCACHE_MAGIC: [u8; 16] = [
    0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca, 0x82, 0x65, 0xf5, 0x7f, 0x48, 0xba, 0x6d, 0x81,
];

/// Reads the layout of a disk of `bytes` bytes. Takes bounded time and little memory, whatever the
/// disk holds.
pub fn recognise(disk: &mut dyn ReadBytes, bytes: u64) -> Layout {
    let mut scan = Scan::new(disk, bytes);
    let mut layout = Builder::default();
    let disk = scan.volume();
    if let Some(table) = partitions::read(&disk, &mut scan, &mut layout) {
        layout.found(table.kind, &disk, 0, "");
        for partition in &table.partitions {
            let volume = disk.part(partition.start, partition.bytes);
            read_volume(&volume, &mut scan, 1, &mut layout);
        }
    } else {
        read_volume(&disk, &mut scan, 0, &mut layout);
    }
    layout.finish()
}

/// Reads the content of a disk or a partition.
fn read_volume(volume: &Volume, scan: &mut Scan<'_>, depth: u8, layout: &mut Builder) {
    let Some(logical) = lvm::read(volume, scan, layout) else {
        if read_file_system(volume, scan, depth, layout).is_none() {
            layout.unknown(volume);
        }
        return;
    };
    layout.found("lvm", volume, depth, "");
    for it in logical {
        if !layout.volume() {
            return;
        }
        if read_file_system(&it.volume, scan, depth + 1, layout).is_none() {
            layout.unknown(&it.volume);
            layout.found("volume", &it.volume, depth + 1, &it.name);
        }
    }
}

/// Returns whether the volume belongs to a RAID array or a cache, whose label leaves the first 4
/// KiB unchanged: remains of a file system there are invalid. (Linux,
/// include/uapi/linux/raid/md_p.h and bcache's super_types.h.)
fn is_member(volume: &Volume, scan: &mut Scan<'_>) -> bool {
    let label: Option<[u8; 40]> = volume.read_array(scan, MEMBER_LABEL_AT);
    label.is_some_and(|label| label[..4] == MD_MAGIC || label[24..] == BCACHE_MAGIC)
}

/// Reads the file system of a volume, which has at most one: each mkfs clears the magic numbers of
/// the others.
fn read_file_system(
    volume: &Volume,
    scan: &mut Scan<'_>,
    depth: u8,
    layout: &mut Builder,
) -> Option<()> {
    if is_member(volume, scan) {
        return None;
    }
    xfs::read(volume, scan, depth, layout)
        .or_else(|| ext4::read(volume, scan, depth, layout))
        .or_else(|| btrfs::read(volume, scan, depth, layout))
}
