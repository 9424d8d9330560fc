//! Partition tables made by sfdisk, with file systems in some partitions.

use std::os::unix::fs::FileExt;

use flowstone_classify::Place;
use flowstone_testkit::truth::run;

use crate::disk::{Disk, MIB, extent, make};

fn partition(disk: &Disk, script: &str) {
    run("sfdisk", &["-q", disk.path()], script);
}

/// Returns start and length of each partition, in bytes.
fn listed(disk: &Disk) -> Vec<(u64, u64)> {
    let table: serde_json::Value =
        serde_json::from_str(&run("sfdisk", &["-J", disk.path()], "")).unwrap();
    let partitions = table["partitiontable"]["partitions"].as_array().unwrap();
    let number = |it: &serde_json::Value, key: &str| it[key].as_u64().unwrap() * 512;
    partitions.iter().map(|it| (number(it, "start"), number(it, "size"))).collect()
}

/// Makes a file system in each of these partitions, and checks that it is recognised.
fn check(disk: &Disk, kind: &str, into: &[usize]) {
    let partitions = listed(disk);
    for index in into {
        let (start, bytes) = partitions[*index];
        let inner = Disk::new(bytes);
        make("mkfs.ext4", "-q -F -b 4096", inner.file.path());
        disk.insert(start, &inner);
    }
    let layout = disk.layout();
    let found = layout.found();
    assert_eq!((found[0].kind, found[0].depth), (kind, 0));
    let file_systems: Vec<u64> = found[1..].iter().map(|it| it.start).collect();
    assert_eq!(file_systems, into.iter().map(|index| partitions[*index].0).collect::<Vec<_>>());
    for (index, (start, _)) in partitions.into_iter().enumerate() {
        let expected = if into.contains(&index) { Place::Metadata } else { Place::Unknown };
        assert_eq!(layout.place(extent(start + 1024, 1024)), expected, "partition {index}");
        assert!(layout.is_defined_by(extent(start + 1024, 512)), "partition {index}");
    }
    assert!(layout.is_defined_by(extent(0, 512)));
}

#[test]
fn gpt() {
    let disk = Disk::new(200 * MIB);
    partition(&disk, "label: gpt\n,20M\n,30M\n,40M\n,\n");
    check(&disk, "gpt", &[1, 3]);
    assert!(disk.layout().is_defined_by(extent(1024, 512)), "its entries");
}

#[test]
fn mbr_with_logical_partitions() {
    let disk = Disk::new(300 * MIB);
    partition(&disk, "label: dos\n,20M\n,30M\n,,E\n,40M\n,50M\n,\n");
    let partitions = listed(&disk);
    assert_eq!(partitions.len(), 6, "two, the extended one, and three in it");
    // The extended partition holds no file system itself: its entry is that of its table.
    let layout = disk.layout();
    assert!(layout.is_defined_by(extent(partitions[2].0, 512)), "the first record of the chain");
    let (start, bytes) = partitions[5];
    let inner = Disk::new(bytes);
    make("mkfs.ext4", "-q -F", inner.file.path());
    disk.insert(start, &inner);
    let layout = disk.layout();
    assert_eq!(layout.found()[1].start, start);
    assert_eq!(layout.place(extent(start + 1024, 1024)), Place::Metadata);
}

/// GRUB is in sector 0 of many disks without a partition table; other boot sectors have the same
/// signature.
#[test]
fn a_boot_sector_without_a_table_hides_no_file_system() {
    let disk = Disk::new(64 * MIB);
    make("mkfs.ext4", "-q -F", disk.file.path());
    disk.file.as_file().write_all_at(&[0x55, 0xAA], 510).unwrap();
    assert_eq!(disk.layout().found()[0].kind, "ext4");
    // Code in place of the entries.
    disk.file.as_file().write_all_at(&[0xCD; 64], 446).unwrap();
    assert_eq!(disk.layout().found()[0].kind, "ext4");
}

#[test]
fn a_chain_of_partitions_that_leads_back_ends() {
    let disk = Disk::new(64 * MIB);
    let entry = |kind: u8, start: u32, count: u32| {
        let mut entry = [0; 16];
        entry[4] = kind;
        entry[8..12].copy_from_slice(&start.to_le_bytes());
        entry[12..16].copy_from_slice(&count.to_le_bytes());
        entry
    };
    let write = |at: u64, bytes: &[u8]| disk.file.as_file().write_all_at(bytes, at).unwrap();
    write(446, &entry(5, 2048, 65536));
    write(510, &[0x55, 0xAA]);
    let record = 2048 * 512;
    write(record + 446, &entry(0x83, 8, 100));
    write(record + 446 + 16, &entry(5, 0, 100));
    write(record + 510, &[0x55, 0xAA]);
    assert_eq!(disk.layout().found()[0].kind, "mbr");
}
