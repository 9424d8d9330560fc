//! Limits of what is read and kept of a disk.

use flowstone_classify::Place;

use crate::disk::{Disk, MIB, extent, make};
use crate::forged::{
    counted, group, journal_inode_at, kinds, linear, mbr_entry, physical_volume, put, put_gpt,
};

#[test]
fn chains_of_partitions_are_followed_for_so_long() {
    let disk = Disk::new(64 * MIB);
    put(&disk, 446, &mbr_entry(0, 5, 2048, 65536));
    put(&disk, 510, &[0x55, 0xAA]);
    for nth in 0..2000u32 {
        let record = (2048 + 8 * u64::from(nth)) * 512;
        put(&disk, record + 446, &mbr_entry(0, 0x83, 1, 7));
        put(&disk, record + 462, &mbr_entry(0, 5, 8 * (nth + 1), 8));
        put(&disk, record + 510, &[0x55, 0xAA]);
    }
    let (layout, reads) = counted(&disk, 64 * MIB);
    assert_eq!(kinds(&layout), ["mbr"]);
    assert!(reads < 1200, "{reads}");
    // A record without a partition that leads to itself.
    put(&disk, MIB + 446, &[0; 16]);
    put(&disk, MIB + 462, &mbr_entry(0, 5, 0, 8));
    put(&disk, MIB + 462 + 8, &[0; 4]);
    let (_, reads) = counted(&disk, 64 * MIB);
    assert!(reads < 10, "{reads}");
}

/// All partitions are the same file system, whose journal is a list of lists of lists.
#[test]
fn a_disk_is_read_in_so_many_pieces() {
    let inner = Disk::new(100 * MIB);
    make("mkfs.ext3", "-q -F -b 1024", inner.file.path());
    let inode = journal_inode_at(&inner, 1024);
    // 256 times 256 empty lists: they take no steps.
    put(&inner, 9000 * 1024, &9001u32.to_le_bytes().repeat(256));
    put(&inner, 9001 * 1024, &9002u32.to_le_bytes().repeat(256));
    put(&inner, 9002 * 1024, &[0; 1024]);
    put(&inner, inode + 0x28, &[0; 60]);
    put(&inner, inode + 0x28 + 56, &9000u32.to_le_bytes());
    let (_, reads) = counted(&inner, 100 * MIB);
    assert!(reads < (8 << 10) + 100, "{reads} for one tree");
    let disk = Disk::new(101 * MIB);
    disk.insert(MIB, &inner);
    put_gpt(&disk, 512, 0, &[(2048, 101 * 2048 - 1); 4]);
    let (layout, reads) = counted(&disk, 101 * MIB);
    assert_eq!(layout.found().len(), 3, "the last two are not reached");
    assert!(reads <= 16 << 10, "{reads}");
}

#[test]
fn a_volume_has_so_many_pieces_and_a_name_of_so_many_letters() {
    let segments: String = (0..5000)
        .map(|nth| {
            format!(
                "segment{nth} {{\nstart_extent = {nth}\nextent_count = 1\ntype = \"striped\"\n\
                 stripes = [\"pv0\", {}]\n}}\n",
                2 * nth
            )
        })
        .collect();
    let volume = format!("{} {{\nstatus = [\"VISIBLE\"]\n{segments}}}\n", "x".repeat(300));
    let text = group(&volume).replace("extent_size = 8192", "extent_size = 8");
    let layout = physical_volume(&text).layout();
    assert_eq!(kinds(&layout), ["lvm", "volume"]);
    assert_eq!(layout.found()[1].bytes, 4096 * 4096);
    assert_eq!(layout.found()[1].label.len(), 128);
}

/// Scattered volumes: 16 ranges of each define the layout.
#[test]
fn so_many_ranges_define_a_layout() {
    let volumes: String = (0..100)
        .map(|volume| {
            let segment = |nth: u32| {
                format!(
                    "segment{nth} {{\nstart_extent = {nth}\nextent_count = 1\ntype = \"striped\"\n\
                     stripes = [\"pv0\", {}]\n}}\n",
                    2 * (16 * volume + nth)
                )
            };
            let segments: String = (0..16).map(segment).collect();
            format!("v{volume} {{\nstatus = [\"VISIBLE\"]\n{segments}}}\n")
        })
        .collect();
    let text = group(&volumes).replace("extent_size = 8192", "extent_size = 1");
    let layout = physical_volume(&text).layout();
    assert!(layout.is_truncated());
    assert!(layout.is_defined_by(extent(MIB, 512)));
    assert!(!layout.is_defined_by(extent(MIB + 2 * 16 * 99 * 512, 512)));
}

/// The 257th volume is not read.
#[test]
fn so_many_volumes_are_read() {
    let volumes: String = (0..300)
        .map(|nth| linear(&format!("v{nth}"), if nth == 290 { 40 } else { 0 }, 10, ""))
        .collect();
    let disk = physical_volume(&group(&volumes));
    let inner = Disk::new(40 * MIB);
    make("mkfs.ext4", "-q -F -b 4096", inner.file.path());
    disk.insert(MIB + 160 * MIB, &inner);
    let layout = disk.layout();
    assert!(layout.is_truncated());
    assert_eq!(layout.found().len(), 256);
    assert_eq!(layout.place(extent(161 * MIB, 4096)), Place::Unknown);
}

/// Bytes of structures beyond the limit of reports were added to the last one reported.
#[test]
fn what_is_not_reported_is_not_counted_elsewhere() {
    let volumes: String = (0..260).map(|nth| linear(&format!("v{nth}"), 0, 10, "")).collect();
    let disk = physical_volume(&group(&volumes));
    let inner = Disk::new(40 * MIB);
    make("mkfs.ext4", "-q -F -b 4096", inner.file.path());
    disk.insert(MIB, &inner);
    let layout = disk.layout();
    assert_eq!(layout.found().len(), 256);
    assert!(layout.is_truncated());
    let (first, last) = (&layout.found()[1], &layout.found()[255]);
    assert_eq!(
        (last.journal_bytes, last.metadata_bytes),
        (first.journal_bytes, first.metadata_bytes)
    );
}

/// The reading thread has a stack of 256 KiB. A tree whose nodes are cyclic ends at its depth
/// limit.
#[test]
fn a_small_stack_is_enough_for_a_tree_that_names_itself() {
    let disk = Disk::new(200 * MIB);
    make("mkfs.ext4", "-q -F -b 4096 -J size=16", disk.file.path());
    let inode = journal_inode_at(&disk, 4096);
    let mut node = vec![0; 4096];
    node[..8].copy_from_slice(&[0x0A, 0xF3, 84, 1, 84, 1, 5, 0]);
    for entry in node[12..].chunks_exact_mut(12) {
        entry[4..8].copy_from_slice(&9000u32.to_le_bytes());
    }
    put(&disk, 9000 * 4096, &node);
    put(&disk, inode + 0x28, &node[..60]);
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(256 << 10);
        let read = || counted(&disk, 200 * MIB).1;
        let reads = thread.spawn_scoped(scope, read).unwrap().join().unwrap();
        assert!(reads < 50, "{reads}");
    });
}
