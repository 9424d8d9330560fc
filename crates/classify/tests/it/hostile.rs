//! Forged disks: whatever is on them, reading ends in bounded time and takes little memory.

use std::os::unix::fs::FileExt;
use std::time::Duration;

use flowstone_classify::{ReadBytes, recognise};
use flowstone_testkit::cpu_time;

use crate::disk::{Disk, GIB, MIB, make};
use crate::forged::journal_inode_at;

/// An image with some bytes changed, on a disk that claims to be huge. Counts reads.
struct Forged<'a> {
    image: &'a [u8],
    changes: Vec<(usize, u8)>,
    bytes_read: u64,
}

impl ReadBytes for Forged<'_> {
    fn read(&mut self, at: u64, target: &mut [u8]) -> Option<()> {
        self.bytes_read += target.len() as u64;
        target.fill(0);
        let at = usize::try_from(at).ok()?;
        if let Some(rest) = self.image.get(at..) {
            let count = rest.len().min(target.len());
            target[..count].copy_from_slice(&rest[..count]);
        }
        for (changed, value) in &self.changes {
            if let Some(byte) = changed.checked_sub(at).and_then(|nth| target.get_mut(nth)) {
                *byte = *value;
            }
        }
        Some(())
    }
}

/// Returns the places of structures that a change may redirect.
fn places(image: &[u8]) -> Vec<usize> {
    let first: Vec<usize> = (0..image.len().min(4 << 20)).filter(|at| image[*at] != 0).collect();
    assert!(first.len() > 100);
    first
}

/// Limit of CPU time of one reading of a layout here, in a debug build.
const TIME_MAX: Duration = Duration::from_secs(20);

#[test]
fn images_with_random_bytes_changed() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for (program, options) in [
        ("mkfs.ext4", "-q -F -b 1024 -O meta_bg,^resize_inode"),
        ("mkfs.ext4", "-q -F"),
        ("mkfs.ext3", "-q -F"),
        ("mkfs.xfs", "-q -f"),
    ] {
        let disk = Disk::new(300 * MIB);
        make(program, options, disk.file.path());
        let mut image = vec![0; 8 << 20];
        disk.file.as_file().read_exact_at(&mut image, 0).unwrap();
        let places = places(&image);
        for _ in 0..400 {
            // The superblock matters most.
            let place = |random: &mut fastrand::Rng| match random.u8(0..2) {
                0 => random.usize(0..2048),
                _ => places[random.usize(0..places.len())],
            };
            let count = random.usize(1..12);
            let changes: Vec<_> = (0..count).map(|_| (place(&mut random), random.u8(..))).collect();
            let begin = cpu_time();
            let mut forged = Forged { image: &image, changes, bytes_read: 0 };
            let layout = recognise(&mut forged, 1 << 60);
            assert!(layout.regions() <= 64 << 10);
            assert!(forged.bytes_read <= 64 * MIB, "{} read", forged.bytes_read);
            assert!(
                (cpu_time() - begin) < TIME_MAX,
                "{:?}: {:?}",
                forged.changes,
                (cpu_time() - begin)
            );
        }
    }
}

/// An extent tree whose nodes are all the same block.
#[test]
fn a_journal_whose_blocks_name_each_other() {
    let disk = Disk::new(GIB);
    make("mkfs.ext4", "-q -F -b 4096 -J size=64", disk.file.path());
    let inode = journal_inode_at(&disk, 4096);
    let node = |depth: u16| {
        let mut node = vec![0; 4096];
        node[0..2].copy_from_slice(&0xF30Au16.to_le_bytes());
        node[2..4].copy_from_slice(&340u16.to_le_bytes());
        node[6..8].copy_from_slice(&depth.to_le_bytes());
        for entry in node[12..].chunks_exact_mut(12) {
            entry[4..8].copy_from_slice(&9000u32.to_le_bytes());
        }
        node
    };
    let file = disk.file.as_file();
    for depth in 0..6 {
        file.write_all_at(&node(depth), 9000 * 4096).unwrap();
        file.write_all_at(&node(5)[..60], inode + 0x28).unwrap();
        let begin = cpu_time();
        assert_eq!(disk.layout().found()[0].kind, "ext4");
        assert!((cpu_time() - begin) < TIME_MAX, "{:?}", (cpu_time() - begin));
    }
}

/// A list of lists of lists, all of them the same block.
#[test]
fn a_journal_of_ext3_whose_lists_name_each_other() {
    let disk = Disk::new(GIB);
    make("mkfs.ext3", "-q -F -b 1024", disk.file.path());
    let inode = journal_inode_at(&disk, 1024);
    let list: Vec<u8> = 9000u32.to_le_bytes().repeat(256);
    disk.file.as_file().write_all_at(&list, 9000 * 1024).unwrap();
    disk.file.as_file().write_all_at(&list[..60], inode + 0x28).unwrap();
    let begin = cpu_time();
    assert_eq!(disk.layout().found()[0].kind, "ext3");
    assert!((cpu_time() - begin) < TIME_MAX, "{:?}", (cpu_time() - begin));
}

/// Partitions that are all the same file system.
#[test]
fn partitions_that_overlap() {
    let disk = Disk::new(GIB);
    make("mkfs.ext4", "-q -F -b 1024", disk.file.path());
    let shifted = Disk::new(GIB + MIB);
    shifted.insert(MIB, &disk);
    let mut table = vec![0; 512 + 128 * 128 + 512];
    table[446 + 4] = 0xEE;
    table[446 + 8] = 1;
    table[446 + 12..446 + 16].fill(0x7F);
    table[510..512].copy_from_slice(&[0x55, 0xAA]);
    table[512..520].copy_from_slice(b"EFI PART");
    table[512 + 72] = 2;
    table[512 + 80..512 + 84].fill(0xFF);
    table[512 + 84] = 128;
    for entry in table[1024..].chunks_exact_mut(128) {
        entry[0] = 1;
        entry[32..40].copy_from_slice(&2048u64.to_le_bytes());
        entry[40..48].copy_from_slice(&(2048 + GIB / 512 - 1).to_le_bytes());
    }
    shifted.file.as_file().write_all_at(&table, 0).unwrap();
    let begin = cpu_time();
    let layout = shifted.layout();
    assert_eq!(layout.found().len(), 1 + 128);
    assert!((cpu_time() - begin) < TIME_MAX, "{:?}", (cpu_time() - begin));
}

/// An XFS of four billion allocation groups, whose headers overlap and so are one region: marking
/// them took a minute, and with partitions hours, in which the image could not be closed.
#[test]
fn allocation_groups_without_end() {
    let mut image = vec![0; 4096];
    image[..4].copy_from_slice(b"XFSB");
    image[4..8].copy_from_slice(&512u32.to_be_bytes());
    image[8..16].copy_from_slice(&u64::from(u32::MAX).to_be_bytes());
    image[84..88].copy_from_slice(&1u32.to_be_bytes());
    image[88..92].copy_from_slice(&u32::MAX.to_be_bytes());
    image[102..104].copy_from_slice(&(32u16 << 10).to_be_bytes());
    let begin = cpu_time();
    let mut forged = Forged { image: &image, changes: Vec::new(), bytes_read: 0 };
    let layout = recognise(&mut forged, 1 << 60);
    assert_eq!(layout.found()[0].kind, "xfs");
    assert!(layout.is_truncated());
    assert!((cpu_time() - begin) < TIME_MAX, "{:?}", (cpu_time() - begin));
}

/// Every group of an ext4 begins with a superblock, whose space for descriptors overlaps the next
/// group.
#[test]
fn superblocks_without_end() {
    let disk = Disk::new(300 * MIB);
    make("mkfs.ext4", "-q -F -b 1024 -O ^sparse_super,^resize_inode", disk.file.path());
    let mut image = vec![0; 1 << 20];
    disk.file.as_file().read_exact_at(&mut image, 0).unwrap();
    let superblock = &mut image[1024..2048];
    superblock[0x04..0x08].copy_from_slice(&u32::MAX.to_le_bytes());
    superblock[0x20..0x24].copy_from_slice(&2048u32.to_le_bytes());
    superblock[0xCE..0xD0].copy_from_slice(&u16::MAX.to_le_bytes());
    let begin = cpu_time();
    let mut forged = Forged { image: &image, changes: Vec::new(), bytes_read: 0 };
    let layout = recognise(&mut forged, 1 << 60);
    assert_eq!(layout.found()[0].kind, "ext4");
    assert!((cpu_time() - begin) < TIME_MAX, "{:?}", (cpu_time() - begin));
}
