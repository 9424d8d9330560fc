//! From a disk to its layout: partition table, logical volumes, file systems.

use crate::layout::{Builder, Layout};
use crate::volume::{ReadBytes, Scan, Volume};
use crate::{ext4, lvm, partitions, xfs};

/// Reads the layout of a disk of so many bytes. It takes a bounded time and little memory, whatever the disk
/// holds.
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

/// A disk or a partition.
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

/// A volume has one at most: mkfs of each of them clears what the other one is known by.
fn read_file_system(
    volume: &Volume,
    scan: &mut Scan<'_>,
    depth: u8,
    layout: &mut Builder,
) -> Option<()> {
    xfs::read(volume, scan, depth, layout).or_else(|| ext4::read(volume, scan, depth, layout))
}
