//! Unusual but valid partition tables, and data that looks like one and is not.

use flowstone_testkit::truth::run;

use crate::disk::{Disk, MIB, extent, make};
use crate::forged::{kinds, mbr_entry, put, put_gpt};

/// fdisk and parted leave a chain in any order when partitions were deleted and recreated; Linux
/// follows it.
#[test]
fn logical_partitions_may_be_chained_in_any_order() {
    let disk = Disk::new(300 * MIB);
    let script = "label: dos\nstart=2048, size=600000, type=5\nstart=206848, size=40000\n\
                  start=4096, size=40000\nstart=304448, size=40000\nstart=104448, size=40000\n";
    run("sfdisk", &["-q", disk.path()], script);
    let table: serde_json::Value =
        serde_json::from_str(&run("sfdisk", &["-J", disk.path()], "")).unwrap();
    let starts: Vec<u64> = table["partitiontable"]["partitions"].as_array().unwrap()[1..]
        .iter()
        .map(|it| it["start"].as_u64().unwrap() * 512)
        .collect();
    assert_eq!(starts.len(), 4);
    let inner = Disk::new(19 * MIB);
    make("mkfs.ext4", "-q -F -b 4096", inner.file.path());
    for start in &starts {
        disk.insert(*start, &inner);
    }
    let layout = disk.layout();
    let found: Vec<u64> = layout.found()[1..].iter().map(|it| it.start).collect();
    assert_eq!(found, starts);
}

#[test]
fn a_gpt_of_blocks_of_4_kib() {
    let disk = Disk::new(200 * MIB);
    let inner = Disk::new(20 * MIB);
    make("mkfs.ext4", "-q -F -b 4096", inner.file.path());
    disk.insert(MIB, &inner);
    disk.insert(40 * MIB, &inner);
    put_gpt(&disk, 4096, 0, &[(256, 21 * 256 - 1), (40 * 256, 60 * 256 - 1)]);
    let layout = disk.layout();
    assert_eq!(kinds(&layout), ["gpt", "ext4", "ext4"]);
    assert_eq!(layout.found()[2].start, 40 * MIB);
    assert!(layout.is_defined_by(extent(8192 + 12288, 512)), "its entries");
}

#[test]
fn a_hybrid_table_is_a_gpt() {
    let disk = Disk::new(100 * MIB);
    let inner = Disk::new(20 * MIB);
    make("mkfs.ext4", "-q -F", inner.file.path());
    disk.insert(40 * MIB, &inner);
    put(&disk, 446, &mbr_entry(0x80, 0x83, 2048, 2048));
    put_gpt(&disk, 512, 1, &[(2048, 4095), (80 * 1024, 120 * 1024 - 1)]);
    assert_eq!(kinds(&disk.layout()), ["gpt", "ext4"]);
}

#[test]
fn the_first_128_partitions_are_read() {
    let disk = Disk::new(30 * MIB);
    let inner = Disk::new(20 * MIB);
    make("mkfs.ext4", "-q -F", inner.file.path());
    disk.insert(MIB, &inner);
    put_gpt(&disk, 512, 0, &[(2048, 42 * 1024 - 1); 200]);
    put(&disk, 512 + 80, &[200]);
    assert_eq!(disk.layout().found().len(), 1 + 128);
}

/// Data in place of the entries is invalid: a status, or a start beyond the end.
#[test]
fn a_boot_sector_whose_entries_cannot_be_hides_no_file_system() {
    for entry in [mbr_entry(0x41, 0x83, 2048, 2048), mbr_entry(0, 0x83, 4 << 20, 2048)] {
        let disk = Disk::new(64 * MIB);
        make("mkfs.ext4", "-q -F", disk.file.path());
        put(&disk, 510, &[0x55, 0xAA]);
        put(&disk, 446, &mbr_entry(0, 0x83, 2048, 2048));
        assert_eq!(kinds(&disk.layout()), ["mbr"]);
        put(&disk, 462, &entry);
        assert_eq!(kinds(&disk.layout()), ["ext4"]);
    }
}
