//! What a hostile review tried. Truth comes from the tools of the file systems.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "it/disk.rs"]
#[allow(dead_code, reason = "shared with the other tests")]
mod disk;

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use disk::{Disk, FileBytes, MIB, compare, extent, make};
use flowstone_block::{
    BlockingDisk, Channel, Class, Completion, Errno, Extent, Geometry, Layer, NextLook, Op, Origin,
    QueueContext, Request, Sector, SectorCount,
};
use flowstone_classify::{Classify, DiskClasses, Layout, Place, ReadBytes, Rule, recognise};
use flowstone_layers::Mem;
use flowstone_testkit::truth::{Truth, run};

fn check_ext4(disk: &Disk) {
    let truth = Truth::of_ext4(disk.path());
    compare(&disk.layout(), &truth, truth.block_bytes);
}

fn kinds(layout: &Layout) -> Vec<&'static str> {
    layout.found().iter().map(|it| it.kind).collect()
}

/// fdisk and parted leave a chain in any order when partitions were deleted and made again; Linux follows
/// it.
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

/// A physical volume of 400 MiB with this text.
fn physical_volume(text: &str) -> Disk {
    const AREA: usize = 4096;
    let disk = Disk::new(400 * MIB);
    let mut bytes = vec![0; AREA + 512];
    let mut put = |at: usize, what: &[u8]| bytes[at..at + what.len()].copy_from_slice(what);
    put(512, b"LABELONE");
    put(520, &1u64.to_le_bytes());
    put(532, &32u32.to_le_bytes());
    put(536, b"LVM2 001");
    put(544, b"9GYVKlW2D8HSB9PSiGdNVEmUMBVPvJtN");
    put(576, &(400 * MIB).to_le_bytes());
    put(584, &MIB.to_le_bytes());
    put(616, &(AREA as u64).to_le_bytes());
    put(624, &(MIB - AREA as u64).to_le_bytes());
    put(AREA + 4, b"\x20LVM2\x20x[5A%r0N*>");
    put(AREA + 20, &1u32.to_le_bytes());
    put(AREA + 24, &(AREA as u64).to_le_bytes());
    put(AREA + 32, &(MIB - AREA as u64).to_le_bytes());
    put(AREA + 40, &512u64.to_le_bytes());
    put(AREA + 48, &(text.len() as u64).to_le_bytes());
    disk.file.as_file().write_all_at(&bytes, 0).unwrap();
    disk.file.as_file().write_all_at(text.as_bytes(), AREA as u64 + 512).unwrap();
    disk
}

/// A group on this physical volume, extents of 4 MiB from 1 MiB on.
fn group(volumes: &str) -> String {
    format!(
        "vg {{\nid = \"x\"\nseqno = 4\nformat = \"lvm2\"\nextent_size = 8192\nphysical_volumes {{\n\
             pv0 {{\nid = \"9GYVKl-W2D8-HSB9-PSiG-dNVE-mUMB-VPvJtN\"\npe_start = 2048\npe_count = 99\n}}\n}}\n\
             logical_volumes {{\n{volumes}}}\n}}\n"
    )
}

/// A linear volume of one segment.
fn linear(name: &str, first: u64, extents: u64, more: &str) -> String {
    format!(
        "{name} {{\nid = \"y\"\nstatus = [\"READ\", \"WRITE\", \"VISIBLE\"]\n{more}segment_count = 1\nsegment1 {{\n\
             start_extent = 0\nextent_count = {extents}\ntype = \"striped\"\nstripe_count = 1\n\
             stripes = [\"pv0\", {first}]\n}}\n}}\n"
    )
}

/// `lvchange -r none` writes `read_ahead = -1`.
#[test]
fn a_volume_without_read_ahead_hides_no_volume() {
    let text =
        group(&(linear("root", 0, 10, "read_ahead = -1\t# None\n") + &linear("home", 20, 10, "")));
    let disk = physical_volume(&text);
    let inner = Disk::new(40 * MIB);
    make("mkfs.ext4", "-q -F -b 4096", inner.file.path());
    disk.insert(MIB, &inner);
    assert_eq!(kinds(&disk.layout()), ["lvm", "ext4", "volume"]);
}

/// An area that its group does not use any more holds an old text (`pvchange --metadataignore y`): where that
/// had volumes, others may be now.
#[test]
fn an_ignored_metadata_area_tells_nothing() {
    let disk = physical_volume(&group(&linear("root", 0, 10, "")));
    let inner = Disk::new(40 * MIB);
    make("mkfs.ext4", "-q -F -b 4096", inner.file.path());
    disk.insert(MIB, &inner);
    assert_eq!(kinds(&disk.layout()), ["lvm", "ext4"]);
    disk.file.as_file().write_all_at(&1u32.to_le_bytes(), 4096 + 40 + 20).unwrap();
    assert_eq!(kinds(&disk.layout()), ["lvm"]);
}

/// What was beyond the most that is reported was added to what was reported last.
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

/// Revision 0, the largest blocks, metadata in one place, and what resize2fs makes of it.
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

/// Counts how often a disk is read.
struct Counted<'a> {
    file: &'a std::fs::File,
    reads: u64,
}

impl ReadBytes for Counted<'_> {
    fn read(&mut self, at: u64, target: &mut [u8]) -> Option<()> {
        self.reads += 1;
        self.file.read_exact_at(target, at).ok()
    }
}

fn counted(disk: &Disk, bytes: u64) -> (Layout, u64) {
    let mut source = Counted { file: disk.file.as_file(), reads: 0 };
    let layout = recognise(&mut source, bytes);
    (layout, source.reads)
}

fn mbr_entry(status: u8, kind: u8, start: u32, count: u32) -> [u8; 16] {
    let mut entry = [0; 16];
    (entry[0], entry[4]) = (status, kind);
    entry[8..12].copy_from_slice(&start.to_le_bytes());
    entry[12..16].copy_from_slice(&count.to_le_bytes());
    entry
}

fn put(disk: &Disk, at: u64, bytes: &[u8]) {
    disk.file.as_file().write_all_at(bytes, at).unwrap();
}

/// A GPT with these entries, each a first and a last block; its protective entry is this one of the boot
/// record.
fn put_gpt(disk: &Disk, block: u64, protective: u64, entries: &[(u64, u64)]) {
    put(disk, 446 + 16 * protective, &mbr_entry(0, 0xEE, 1, u32::MAX));
    put(disk, 510, &[0x55, 0xAA]);
    let mut header = [0; 92];
    header[..8].copy_from_slice(b"EFI PART");
    (header[72], header[80], header[84]) = (2, 128, 128);
    put(disk, block, &header);
    for (nth, (first, last)) in entries.iter().enumerate() {
        let mut entry = [0; 128];
        entry[0] = 1;
        entry[32..40].copy_from_slice(&first.to_le_bytes());
        entry[40..48].copy_from_slice(&last.to_le_bytes());
        put(disk, 2 * block + 128 * nth as u64, &entry);
    }
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

/// What lies where entries would be is none: a status, or a start beyond the end.
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

/// Partitions that all are a file system whose journal is a list of lists of lists.
#[test]
fn a_disk_is_read_in_so_many_pieces() {
    let inner = Disk::new(100 * MIB);
    make("mkfs.ext3", "-q -F -b 1024", inner.file.path());
    let said = run("debugfs", &["-R", "imap <8>", inner.path()], "");
    let (_, place) = said.split_once("located at block ").unwrap();
    let (block, offset) = place.trim().split_once(", offset 0x").unwrap();
    let inode = block.parse::<u64>().unwrap() * 1024 + u64::from_str_radix(offset, 16).unwrap();
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

/// Volumes of which each 512 bytes lie elsewhere: 16 ranges of each of them define what it is.
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

/// The 257th volume is not looked at.
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

/// Headers of groups that overlap each other are one region, and the rest of the disk is none.
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

/// What may take its place begins before an ext4: a boot record, another superblock.
#[test]
fn a_boot_record_before_a_file_system_defines() {
    let disk = Disk::new(64 * MIB);
    make("mkfs.ext4", "-q -F", disk.file.path());
    assert!(disk.layout().is_defined_by(extent(0, 512)));
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

#[test]
fn an_orphan_file_is_metadata() {
    let disk = Disk::new(200 * MIB);
    make("mkfs.ext4", "-q -F -L called -O orphan_file", disk.file.path());
    check_ext4(&disk);
}

/// Extents that have been allocated and not been written are as long as the others.
#[test]
fn extents_of_a_journal_that_were_never_written() {
    let disk = Disk::new(200 * MIB);
    make("mkfs.ext4", "-q -F -b 4096 -J size=16", disk.file.path());
    let said = run("debugfs", &["-R", "imap <8>", disk.path()], "");
    let (_, place) = said.split_once("located at block ").unwrap();
    let (block, offset) = place.trim().split_once(", offset 0x").unwrap();
    let inode = block.parse::<u64>().unwrap() * 4096 + u64::from_str_radix(offset, 16).unwrap();
    let before = disk.layout();
    put(&disk, inode + 0x28 + 12 + 4, &(4096u16 + 32768).to_le_bytes());
    assert_eq!(disk.layout(), before);
    assert_eq!(before.found()[0].journal_bytes, 16 * MIB);
}

/// Blocks of a file system of 18 TiB have numbers of more than 32 bits.
#[test]
fn a_file_system_of_18_tib() {
    const TIB: u64 = 1 << 40;
    // ext4 itself has no files of that size.
    if tempfile::tempfile().unwrap().set_len(18 * TIB).is_err() {
        println!("skipped: no room for a sparse file of 18 TiB");
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

/// The thread that reads has a stack of 256 KiB. A tree whose nodes name themselves ends at its depth.
#[test]
fn a_small_stack_is_enough_for_a_tree_that_names_itself() {
    let disk = Disk::new(200 * MIB);
    make("mkfs.ext4", "-q -F -b 4096 -J size=16", disk.file.path());
    let said = run("debugfs", &["-R", "imap <8>", disk.path()], "");
    let (_, place) = said.split_once("located at block ").unwrap();
    let (block, offset) = place.trim().split_once(", offset 0x").unwrap();
    let inode = block.parse::<u64>().unwrap() * 4096 + u64::from_str_radix(offset, 16).unwrap();
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

/// Of a group on two disks the pieces on this one are known, whichever comes first in the text.
#[test]
fn the_second_physical_volume_of_a_group() {
    let other = "pv_other {\nid = \"aaaaaa-W2D8-HSB9-PSiG-dNVE-mUMB-VPvJtN\"\npe_start = 4096\n}\n";
    let text = group(&linear("root", 0, 10, ""))
        .replace("physical_volumes {\n", &format!("physical_volumes {{\n{other}"));
    let disk = physical_volume(&text);
    let inner = Disk::new(40 * MIB);
    make("mkfs.ext4", "-q -F -b 4096", inner.file.path());
    disk.insert(MIB, &inner);
    assert_eq!(kinds(&disk.layout()), ["lvm", "ext4"]);
    // Segments of other kinds, and areas that are none.
    let disk = physical_volume(&text.replace("\"striped\"", "\"error\""));
    assert_eq!(kinds(&disk.layout()), ["lvm"]);
    let disk = physical_volume(&text);
    put(&disk, 4096 + 4, b"nothing");
    assert_eq!(kinds(&disk.layout()), ["lvm"]);
}

/// A disk in memory. Reads and writes of the layers above wait while they are told to, and fail on demand.
struct Slow {
    base: Mem,
    control: Arc<Control>,
}

#[derive(Default)]
struct Control {
    /// How long each read takes, in milliseconds.
    read_ms: AtomicU64,
    reads: AtomicU64,
    reads_fail: AtomicBool,
    /// Writes are carried out, and reported as failed.
    writes_fail: AtomicBool,
    /// Completions of writes are kept back.
    writes_held: AtomicBool,
    /// So many channels cannot be opened.
    channels_refused: AtomicU64,
}

struct SlowChannel {
    base: Box<dyn Channel>,
    control: Arc<Control>,
    held: Vec<Completion>,
}

impl Layer for Slow {
    fn geometry(&self) -> Geometry {
        self.base.geometry()
    }

    fn channel(&self, context: &QueueContext) -> io::Result<Box<dyn Channel>> {
        let left = &self.control.channels_refused;
        if left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {
            return Err(io::Error::from(io::ErrorKind::OutOfMemory));
        }
        let (base, control) = (self.base.channel(context)?, Arc::clone(&self.control));
        Ok(Box::new(SlowChannel { base, control, held: Vec::new() }))
    }
}

impl Channel for SlowChannel {
    fn submit(&mut self, request: Box<Request>) {
        if matches!(request.op, Op::Read(_)) {
            self.control.reads.fetch_add(1, Relaxed);
            std::thread::sleep(Duration::from_millis(self.control.read_ms.load(Relaxed)));
        }
        self.base.submit(request);
    }

    fn kick(&mut self) {
        self.base.kick();
    }

    fn reap(&mut self, done: &mut Vec<Completion>) {
        self.base.reap(&mut self.held);
        if self.control.writes_held.load(Relaxed) {
            let (writes, others) = std::mem::take(&mut self.held)
                .into_iter()
                .partition(|it: &Completion| it.request.op.modifies());
            self.held = writes;
            done.extend::<Vec<_>>(others);
        } else {
            done.append(&mut self.held);
        }
        for it in done {
            let is_read = matches!(it.request.op, Op::Read(_));
            let control = &self.control;
            if is_read && control.reads_fail.load(Relaxed)
                || !is_read && control.writes_fail.load(Relaxed)
            {
                it.outcome = Err(Errno::IO);
            }
        }
    }

    fn next_look(&mut self) -> NextLook {
        NextLook::now_if(!self.held.is_empty()).min(self.base.next_look())
    }
}

/// What a queue of a guest asks of a layer.
struct OfGuest<'a>(&'a Classify, u16);

impl Layer for OfGuest<'_> {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn channel(&self, context: &QueueContext) -> io::Result<Box<dyn Channel>> {
        let origin = Origin::Queue { disk: 0, queue: self.1 };
        self.0.channel(&QueueContext { origin, ..context.clone() })
    }
}

/// Such a disk with what this one holds in its first 32 MiB.
fn slow(image: &Disk) -> (Arc<Slow>, Arc<Control>) {
    let base = Mem::new(SectorCount::from_bytes(32 * MIB).unwrap()).unwrap();
    let mut piece = vec![0; MIB as usize];
    let mut writer = BlockingDisk::new(&base).unwrap();
    for at in (0..32 * MIB).step_by(piece.len()) {
        image.file.as_file().read_exact_at(&mut piece, at).unwrap();
        writer.write(Sector::new(at / 512), &mut piece).unwrap();
    }
    let control = Arc::new(Control::default());
    (Arc::new(Slow { base, control: Arc::clone(&control) }), control)
}

fn ext4_of_32_mib(options: &str) -> Disk {
    let image = Disk::new(32 * MIB);
    make("mkfs.ext4", &format!("-q -F {options}"), image.file.path());
    image
}

fn wait_for(what: &str, seconds: u64, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(seconds);
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn is_ext4(classes: &DiskClasses) -> bool {
    classes.layout().found().iter().any(|it| it.kind == "ext4")
}

/// No reading is wanted any more: two of them have found the same definers.
fn settled(classes: &DiskClasses) -> u64 {
    wait_for("the layout", 10, || is_ext4(classes));
    std::thread::sleep(Duration::from_millis(2500));
    classes.readings()
}

/// Zeroes the superblock.
fn wipe(disk: &mut BlockingDisk) {
    let _ = disk.write(Sector::new(2), &mut [0; 1024]);
}

/// Readings that are on their way when the superblock is written are followed by another one, and none
/// begins before the write has completed.
#[test]
fn what_is_written_during_a_reading_is_read() {
    let (disk, control) = slow(&ext4_of_32_mib(""));
    let classify = Classify::new(disk, 3);
    let classes = classify.classes();
    let before = settled(&classes);
    assert_eq!(before, 2, "once more, since what defines the layout has changed");
    // Not before it has completed.
    let mut superblock = vec![0; 1024];
    let mut guest = BlockingDisk::new(&OfGuest(&classify, 0)).unwrap();
    guest.read(Sector::new(2), &mut superblock).unwrap();
    let reads = control.reads.load(Relaxed);
    control.writes_held.store(true, Relaxed);
    std::thread::scope(|scope| {
        let (classify, control, classes) = (&classify, &control, &classes);
        let held = scope.spawn(move || {
            let mut guest = BlockingDisk::new(&OfGuest(classify, 1)).unwrap();
            guest.write(Sector::new(2), &mut superblock).unwrap();
        });
        std::thread::sleep(Duration::from_millis(1500));
        let meanwhile = classes.readings();
        control.read_ms.store(200, Relaxed);
        control.writes_held.store(false, Relaxed);
        held.join().unwrap();
        assert_eq!(meanwhile, before, "a write that has not completed");
    });
    wait_for("a reading", 10, || control.reads.load(Relaxed) > reads + 1);
    // The block with the superblock has been read.
    assert!(is_ext4(&classes));
    wipe(&mut guest);
    control.read_ms.store(0, Relaxed);
    wait_for("another reading", 10, || !is_ext4(&classes));
}

#[test]
fn whatever_changes_a_superblock_is_noticed() {
    let check = |nth| {
        let (disk, control) = slow(&ext4_of_32_mib(""));
        let classify = Classify::new(disk, 3);
        let classes = classify.classes();
        settled(&classes);
        let mut guest = BlockingDisk::new(&OfGuest(&classify, 0)).unwrap();
        let of_superblock = Extent::new(Sector::new(2), SectorCount::new(2)).unwrap();
        match nth {
            0 => wipe(&mut guest),
            1 => guest.run(Op::Discard(of_superblock)).unwrap(),
            2 => guest.run(Op::WriteZeroes { extent: of_superblock, unmap: false }).unwrap(),
            _ => {
                control.writes_fail.store(true, Relaxed);
                wipe(&mut guest);
            }
        }
        wait_for("another reading", 10, || !is_ext4(&classes));
    };
    std::thread::scope(|scope| (0..4).for_each(|nth| drop(scope.spawn(move || check(nth)))));
}

/// A write is submitted before the first layout is known, and completes when it long is.
#[test]
fn a_write_is_judged_by_the_layout_of_its_end() {
    let image = Disk::new(32 * MIB);
    let inner = Disk::new(20 * MIB);
    make("mkfs.ext4", "-q -F", inner.file.path());
    image.insert(MIB, &inner);
    put_gpt(&image, 512, 0, &[(2048, 42 * 1024 - 1)]);
    let mut superblock = vec![0; 1024];
    image.file.as_file().read_exact_at(&mut superblock, MIB + 1024).unwrap();
    let (disk, control) = slow(&image);
    control.read_ms.store(500, Relaxed);
    control.writes_held.store(true, Relaxed);
    let classify = Classify::new(disk, 3);
    let classes = classify.classes();
    std::thread::scope(|scope| {
        let classify = &classify;
        let guest = scope.spawn(move || {
            let mut guest = BlockingDisk::new(&OfGuest(classify, 0)).unwrap();
            guest.write(Sector::new(2048 + 2), &mut superblock).unwrap();
        });
        std::thread::sleep(Duration::from_millis(200));
        control.read_ms.store(0, Relaxed);
        let before = settled(&classes);
        control.writes_held.store(false, Relaxed);
        guest.join().unwrap();
        wait_for("another reading", 5, || classes.readings() > before);
    });
}

/// A guest that writes its superblock all the time makes it be read once a second.
#[test]
fn readings_are_a_second_apart() {
    let (disk, _) = slow(&ext4_of_32_mib(""));
    let classify = Classify::new(disk, 3);
    let classes = classify.classes();
    wait_for("the layout", 10, || is_ext4(&classes));
    let mut guest = BlockingDisk::new(&OfGuest(&classify, 0)).unwrap();
    let mut superblock = vec![0; 1024];
    guest.read(Sector::new(2), &mut superblock).unwrap();
    let (begin, before) = (Instant::now(), classes.readings());
    while begin.elapsed() < Duration::from_millis(3300) {
        guest.write(Sector::new(2), &mut superblock).unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    let readings = classes.readings() - before;
    assert!((2..=4).contains(&readings), "{readings}");
}

/// A reading of many pieces ends with the one that is on its way.
#[test]
fn a_disk_goes_away_during_a_reading() {
    let image = Disk::new(32 * MIB);
    make("mkfs.ext3", "-q -F -b 1024 -J size=4", image.file.path());
    let (disk, control) = slow(&image);
    control.read_ms.store(300, Relaxed);
    let weak = Arc::downgrade(&disk);
    let classify = Classify::new(disk, 3);
    wait_for("a reading", 10, || control.reads.load(Relaxed) > 1);
    let begin = Instant::now();
    drop(classify);
    assert!(begin.elapsed() < Duration::from_millis(900), "{:?}", begin.elapsed());
    assert!(weak.upgrade().is_none(), "nobody holds the image any more");
}

/// Between two readings the thread waits for a second, and not when the disk goes away.
#[test]
fn a_disk_goes_away_between_two_readings() {
    let (disk, control) = slow(&ext4_of_32_mib(""));
    let weak = Arc::downgrade(&disk);
    let classify = Classify::new(disk, 3);
    let classes = classify.classes();
    wait_for("the layout", 10, || is_ext4(&classes));
    drop(classes);
    std::thread::sleep(Duration::from_millis(50));
    let begin = Instant::now();
    drop(classify);
    assert!(begin.elapsed() < Duration::from_millis(500), "{:?}", begin.elapsed());
    assert!(weak.upgrade().is_none());
    assert!(control.reads.load(Relaxed) > 0);
}

/// The daemon's own requests are nobody's.
#[test]
fn only_requests_of_guests_are_counted() {
    let (disk, _) = slow(&ext4_of_32_mib(""));
    let classify = Classify::new(disk, 3);
    let classes = classify.classes();
    let written =
        || Class::ALL.map(|it| classes.counters().of_class(it).writes).iter().sum::<u64>();
    let mut own = BlockingDisk::new(&classify).unwrap();
    own.write(Sector::new(4096), &mut [0; 4096]).unwrap();
    assert_eq!(written(), 0);
    let mut guest = BlockingDisk::new(&OfGuest(&classify, 0)).unwrap();
    guest.write(Sector::new(4096), &mut [0; 4096]).unwrap();
    assert_eq!(written(), 1);
}

/// A queue that has been idle knows the journals that others have found.
#[test]
fn a_pattern_is_known_to_all_queues() {
    let (disk, _) = slow(&Disk::new(32 * MIB));
    let classify = Classify::new(disk, 3);
    let classes = classify.classes();
    let mut first = BlockingDisk::new(&OfGuest(&classify, 0)).unwrap();
    let mut second = BlockingDisk::new(&OfGuest(&classify, 1)).unwrap();
    second.read(Sector::new(20_000), &mut [0; 4096]).unwrap();
    let mut at = 10_000;
    for _ in 0..20 {
        for bytes in [12_288, 4096] {
            first.write(Sector::new(at), &mut vec![0; bytes]).unwrap();
            first.run(Op::Flush).unwrap();
            at += bytes as u64 / 512;
        }
    }
    assert!(classes.counters().of_rule(Rule::Pattern) > 10);
    second.read(Sector::new(10_200), &mut [0; 4096]).unwrap();
    assert_eq!(classes.counters().of_class(Class::Journal).reads, 1);
}

/// The ring or the thread of the first reading was refused, and nothing was known until the guest wrote its
/// boot record.
#[test]
fn a_reading_that_could_not_begin_is_done_again() {
    let (disk, control) = slow(&ext4_of_32_mib(""));
    control.channels_refused.store(1, Relaxed);
    let classify = Classify::new(disk, 3);
    let classes = classify.classes();
    wait_for("the layout", 6, || is_ext4(&classes));
}

/// What had been known was given up after three readings that met errors, with what says when to read it
/// again.
#[test]
fn an_outage_of_some_seconds_does_not_cost_the_layout_for_good() {
    let image = Disk::new(32 * MIB);
    run("sfdisk", &["-q", image.path()], "label: gpt\nstart=2048, size=40960\n");
    let inner = Disk::new(20 * MIB);
    make("mkfs.ext4", "-q -F", inner.file.path());
    image.insert(MIB, &inner);
    let (disk, control) = slow(&image);
    let classify = Classify::new(disk, 3);
    let classes = classify.classes();
    settled(&classes);
    let mut guest = BlockingDisk::new(&OfGuest(&classify, 0)).unwrap();
    let mut superblock = vec![0; 1024];
    guest.read(Sector::new(2048 + 2), &mut superblock).unwrap();
    control.reads_fail.store(true, Relaxed);
    guest.write(Sector::new(2048 + 2), &mut superblock).unwrap();
    std::thread::sleep(Duration::from_secs(6));
    control.reads_fail.store(false, Relaxed);
    // The guest mounts the file system again.
    guest.write(Sector::new(2048 + 2), &mut superblock).unwrap();
    wait_for("the layout", 6, || is_ext4(&classes));
}

/// With blocks of 4 KiB (a disk that demands them), a boot record counts these.
#[test]
fn a_boot_record_of_a_disk_with_blocks_of_4_kib() {
    struct Large(Arc<Slow>);
    impl Layer for Large {
        fn geometry(&self) -> Geometry {
            Geometry { logical_block_bytes: 4096, ..self.0.geometry() }
        }
        fn channel(&self, context: &QueueContext) -> io::Result<Box<dyn Channel>> {
            self.0.channel(context)
        }
    }
    let image = Disk::new(32 * MIB);
    let inner = Disk::new(20 * MIB);
    make("mkfs.ext4", "-q -F", inner.file.path());
    image.insert(MIB, &inner);
    put(&image, 446, &mbr_entry(0, 0x83, 256, 20 * 256));
    put(&image, 510, &[0x55, 0xAA]);
    let classify = Classify::new(Arc::new(Large(slow(&image).0)), 3);
    let classes = classify.classes();
    wait_for("the layout", 5, || is_ext4(&classes));
}
