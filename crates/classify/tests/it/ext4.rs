//! Every block of real ext2, ext3 and ext4 file systems, against dumpe2fs and debugfs.

use flowstone_classify::{Layout, Place, recognise};
use flowstone_testkit::truth::Truth;

use crate::disk::{Disk, FileBytes, GIB, MIB, compare, extent, make};

fn check(bytes: u64, program: &str, options: &str) -> Layout {
    println!("{program} {options}, {} MiB", bytes / MIB);
    let disk = Disk::new(bytes);
    make(program, &format!("-q -F -L called {options}"), disk.file.path());
    let truth = Truth::of_ext4(disk.path());
    let layout = disk.layout();
    compare(&layout, &truth, truth.block_bytes);
    layout
}

#[test]
fn as_mke2fs_makes_it() {
    let layout = check(2 * GIB, "mkfs.ext4", "");
    assert_eq!(layout.found()[0].kind, "ext4");
    assert!(
        layout.regions() < 60,
        "{} regions: groups of a flex group lie together",
        layout.regions()
    );
}

#[test]
fn every_feature_that_moves_something() {
    for (bytes, program, options) in [
        (96 * MIB, "mkfs.ext4", "-b 1024"),
        (600 * MIB, "mkfs.ext4", "-b 1024 -O meta_bg,^resize_inode"),
        (600 * MIB, "mkfs.ext4", "-b 1024 -O meta_bg,^resize_inode,^flex_bg,^sparse_super"),
        (600 * MIB, "mkfs.ext4", "-b 2048 -I 512 -O ^64bit,^flex_bg"),
        (GIB, "mkfs.ext4", "-O bigalloc -C 65536"),
        (GIB, "mkfs.ext4", "-b 1024 -O bigalloc -C 16384"),
        (GIB, "mkfs.ext4", "-O sparse_super2,^resize_inode"),
        (GIB, "mkfs.ext4", "-O mmp -N 4096"),
        (300 * MIB, "mkfs.ext4", "-O ^has_journal"),
    ] {
        check(bytes, program, options);
    }
}

#[test]
fn journals_in_lists_of_blocks() {
    let layout = check(300 * MIB, "mkfs.ext3", "-b 1024 -J size=80");
    assert_eq!(layout.found()[0].kind, "ext3");
    let layout = check(100 * MIB, "mkfs.ext2", "");
    assert_eq!(layout.found()[0].kind, "ext2");
}

/// Its extents do not fit into the inode.
#[test]
fn a_journal_of_many_extents() {
    let layout = check(20 * GIB, "mkfs.ext4", "-J size=1024");
    assert_eq!(layout.found()[0].journal_bytes, GIB);
}

#[test]
fn a_journal_on_a_device_of_its_own() {
    for block_bytes in [1024, 4096] {
        let disk = Disk::new(64 * MIB);
        make("mke2fs", &format!("-q -F -b {block_bytes} -O journal_dev"), disk.file.path());
        let layout = disk.layout();
        assert_eq!(layout.found()[0].kind, "ext4 journal");
        // The journal's own superblock is in front of it.
        assert_eq!(layout.place(extent(0, block_bytes)), Place::FileSystem);
        let first = if block_bytes == 1024 { 2048 } else { 4096 };
        assert_eq!(layout.place(extent(first, 64 * MIB - first)), Place::Journal);
    }
}

/// A file system larger than its device was recognised.
#[test]
fn a_file_system_that_is_larger_than_its_disk_is_none() {
    let disk = Disk::new(64 * MIB);
    make("mkfs.ext4", "-q -F", disk.file.path());
    disk.file.as_file().set_len(32 * MIB).unwrap();
    let smaller = recognise(&mut FileBytes(disk.file.as_file()), 32 * MIB);
    assert!(smaller.found().is_empty());
    assert_eq!(smaller.place(extent(0, 4096)), Place::Unknown);
}

#[test]
fn what_says_where_everything_is_is_watched() {
    let disk = Disk::new(64 * MIB);
    assert!(disk.layout().is_defined_by(extent(0, 512)), "mkfs writes there");
    make("mkfs.ext4", "-q -F", disk.file.path());
    let layout = disk.layout();
    assert!(layout.is_defined_by(extent(1024, 1024)));
    assert!(layout.is_defined_by(extent(0, 64 * MIB)), "as when all of it is discarded");
    assert!(!layout.is_defined_by(extent(4096, 32 * MIB)), "descriptors change all the time");
}
