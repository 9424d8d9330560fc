//! File systems with unusual options.

use flowstone_classify::{Place, recognise};
use flowstone_testkit::truth::{Truth, run};

use crate::disk::{Disk, FileBytes, MIB, compare, extent, make};
use crate::forged::{journal_inode_at, kinds, put};

/// Revision 0, the largest blocks, metadata in one place, and the result of resize2fs.
#[test]
fn other_file_systems_of_mke2fs() {
    for (program, options, grows) in [
        ("mkfs.ext2", "-r 0 -b 1024", false),
        ("mkfs.ext4", "-b 65536", false),
        ("mkfs.ext4", "-b 1024 -O ^flex_bg -E packed_meta_blocks=1", false),
        ("mkfs.ext4", "-b 1024 -E resize=400000", true),
        ("mkfs.ext4", "-b 2048 -O sparse_super2,^resize_inode", true),
        ("mkfs.ext4", "-b 1024 -O meta_bg,^resize_inode", true),
    ] {
        let disk = Disk::new(120 * MIB);
        make(program, &format!("-q -F -L called {options}"), disk.file.path());
        let mut bytes = 120 * MIB;
        if grows {
            bytes = 700 * MIB;
            disk.file.as_file().set_len(bytes).unwrap();
            run("resize2fs", &["-f", disk.path()], "");
        }
        let truth = Truth::of_ext4(disk.path());
        let layout = recognise(&mut FileBytes(disk.file.as_file()), bytes);
        println!("{options}");
        compare(&layout, &truth, truth.block_bytes);
    }
}

#[test]
fn an_orphan_file_is_metadata() {
    let disk = Disk::new(200 * MIB);
    make("mkfs.ext4", "-q -F -L called -O orphan_file", disk.file.path());
    let truth = Truth::of_ext4(disk.path());
    compare(&disk.layout(), &truth, truth.block_bytes);
}

/// Unwritten extents are encoded with another length.
#[test]
fn extents_of_a_journal_that_were_never_written() {
    let disk = Disk::new(200 * MIB);
    make("mkfs.ext4", "-q -F -b 4096 -J size=16", disk.file.path());
    let inode = journal_inode_at(&disk, 4096);
    let before = disk.layout();
    put(&disk, inode + 0x28 + 12 + 4, &(4096u16 + 32768).to_le_bytes());
    assert_eq!(disk.layout(), before);
    assert_eq!(before.found()[0].journal_bytes, 16 * MIB);
}

/// Block numbers of a file system of 18 TiB exceed 32 bits.
#[test]
fn a_file_system_of_18_tib() {
    const TIB: u64 = 1 << 40;
    // ext4 itself has no files of that size.
    if tempfile::tempfile().unwrap().set_len(18 * TIB).is_err() {
        flowstone_testkit::skip("no room for a sparse file of 18 TiB");
        return;
    }
    let disk = Disk::new(18 * TIB);
    let options = "-q -F -b 4096 -N 1000000 -G 8192 -J size=64,location=4500000000 \
                   -E lazy_itable_init=1,lazy_journal_init=1,nodiscard -O ^resize_inode";
    make("mkfs.ext4", options, disk.file.path());
    let layout = disk.layout();
    assert_eq!(layout.found()[0].journal_bytes, 64 * MIB);
    assert_eq!(layout.place(extent(4_500_000_000 * 4096 + MIB, MIB)), Place::Journal);
    let groups = run("dumpe2fs", &[disk.path()], "");
    let last = groups.lines().filter_map(|line| line.split_once("Inode table at ")).next_back();
    let block = last.unwrap().1.split('-').next().unwrap().parse::<u64>().unwrap();
    assert!(block > 1 << 32, "{block}");
    assert_eq!(layout.place(extent(block * 4096, 4096)), Place::Metadata);
}

/// A replacement may begin in front of an ext4: a boot record, another superblock.
#[test]
fn a_boot_record_before_a_file_system_defines() {
    let disk = Disk::new(64 * MIB);
    make("mkfs.ext4", "-q -F", disk.file.path());
    assert!(disk.layout().is_defined_by(extent(0, 512)));
}

/// Overlapping headers of groups are one region, and the rest of the disk is none.
#[test]
fn groups_smaller_than_their_headers_overlap() {
    let disk = Disk::new(MIB);
    let mut superblock = [0; 512];
    superblock[..4].copy_from_slice(b"XFSB");
    superblock[4..8].copy_from_slice(&512u32.to_be_bytes());
    superblock[8..16].copy_from_slice(&1024u64.to_be_bytes());
    superblock[84..88].copy_from_slice(&128u32.to_be_bytes());
    superblock[88..92].copy_from_slice(&8u32.to_be_bytes());
    superblock[102..104].copy_from_slice(&(32u16 << 10).to_be_bytes());
    put(&disk, 0, &superblock);
    let layout = disk.layout();
    assert_eq!((kinds(&layout), layout.regions()), (vec!["xfs"], 1));
    assert_eq!(layout.place(extent(0, MIB / 2)), Place::Metadata);
    assert!(layout.is_defined_by(extent(0, 512)));
}

#[test]
fn an_xfs_that_cannot_be_is_none() {
    let disk = Disk::new(400 * MIB);
    make("mkfs.xfs", "-q -f", disk.file.path());
    let smaller = |bytes| recognise(&mut FileBytes(disk.file.as_file()), bytes);
    assert_eq!(kinds(&smaller(400 * MIB)), ["xfs"]);
    assert_eq!(kinds(&smaller(399 * MIB)), [""; 0]);
    put(&disk, 91, &[3]);
    assert_eq!(kinds(&disk.layout()), [""; 0], "four groups");
}
