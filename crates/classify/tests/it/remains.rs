//! Remains of old content under new structures.

use std::os::unix::fs::FileExt;

use flowstone_classify::Place;
use flowstone_testkit::truth::run;

use crate::disk::{Disk, MIB, extent, make};
use crate::forged::kinds;

/// mdadm with metadata 1.2 (its default) writes at 4 KiB and leaves the first 4 KiB as they are.
#[test]
fn a_member_of_a_raid_is_not_the_file_system_that_was_there_before() {
    let disk = Disk::new(64 * MIB);
    make("mkfs.ext4", "-q -F -b 4096", disk.file.path());
    let mut md = [0u8; 256];
    md[0..4].copy_from_slice(&0xa92b_4efc_u32.to_le_bytes());
    md[4..8].copy_from_slice(&1u32.to_le_bytes());
    md[16..32].fill(7);
    md[72..76].copy_from_slice(&1u32.to_le_bytes());
    md[80..88].copy_from_slice(&100_000u64.to_le_bytes());
    md[92..96].copy_from_slice(&2u32.to_le_bytes());
    md[128..136].copy_from_slice(&2048u64.to_le_bytes());
    md[136..144].copy_from_slice(&100_000u64.to_le_bytes());
    md[144..152].copy_from_slice(&8u64.to_le_bytes());
    // checksum
    let mut sum: u64 =
        md.chunks_exact(4).map(|it| u64::from(u32::from_le_bytes(it.try_into().unwrap()))).sum();
    sum = (sum & 0xFFFF_FFFF) + (sum >> 32);
    md[216..220].copy_from_slice(&(sum as u32).to_le_bytes());
    disk.file.as_file().write_all_at(&md, 4096).unwrap();
    let layout = disk.layout();
    assert_eq!(kinds(&layout), [""; 0]);
}

#[test]
fn a_journal_device_made_over_something_else() {
    for (program, options, kind) in [
        ("mkfs.xfs", "-q -f", "xfs"),
        ("mkfs.ext4", "-q -F", "ext4"),
        ("sfdisk", "", "gpt"),
        ("pvcreate", "", "lvm"),
    ] {
        let disk = Disk::new(400 * MIB);
        if program == "sfdisk" {
            run("sfdisk", &["-q", disk.path()], "label: gpt\n,20M\n,30M\n");
        } else if program == "pvcreate" {
            let mut label = [0u8; 512];
            label[..8].copy_from_slice(b"LABELONE");
            label[20..24].copy_from_slice(&32u32.to_le_bytes());
            label[24..32].copy_from_slice(b"LVM2 001");
            label[32..64].fill(b'a');
            disk.file.as_file().write_all_at(&label, 512).unwrap();
        } else {
            make(program, options, disk.file.path());
        }
        assert_eq!(disk.layout().found()[0].kind, kind);
        make("mke2fs", "-q -F -b 4096 -O journal_dev", disk.file.path());
        let layout = disk.layout();
        assert_eq!(kinds(&layout), ["ext4 journal"], "over {kind}");
        assert_eq!(layout.place(extent(0, 8192)), Place::FileSystem, "half of it lies before");
        assert_eq!(layout.place(extent(4096, 4096)), Place::Journal);
    }
}
