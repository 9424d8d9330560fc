//! Structures written by hand: tables, physical volumes, and a count of reads.

use std::os::unix::fs::FileExt;

use flowstone_classify::{Layout, ReadBytes, recognise};
use flowstone_testkit::truth::run;

use crate::disk::{Disk, MIB};

pub fn kinds(layout: &Layout) -> Vec<&'static str> {
    layout.found().iter().map(|it| it.kind).collect()
}

pub fn put(disk: &Disk, at: u64, bytes: &[u8]) {
    disk.file.as_file().write_all_at(bytes, at).unwrap();
}

pub fn mbr_entry(status: u8, kind: u8, start: u32, count: u32) -> [u8; 16] {
    let mut entry = [0; 16];
    (entry[0], entry[4]) = (status, kind);
    entry[8..12].copy_from_slice(&start.to_le_bytes());
    entry[12..16].copy_from_slice(&count.to_le_bytes());
    entry
}

/// Writes a GPT with these entries, each a first and a last block; its protective entry has this
/// index in the boot record.
pub fn put_gpt(disk: &Disk, block: u64, protective: u64, entries: &[(u64, u64)]) {
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

/// Makes a physical volume of 400 MiB with this text.
pub fn physical_volume(text: &str) -> Disk {
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

/// Makes a group on this physical volume, with extents of 4 MiB from 1 MiB on.
pub fn group(volumes: &str) -> String {
    format!(
        "vg {{\nid = \"x\"\nseqno = 4\nformat = \"lvm2\"\nextent_size = 8192\nphysical_volumes {{\n\
             pv0 {{\nid = \"9GYVKl-W2D8-HSB9-PSiG-dNVE-mUMB-VPvJtN\"\npe_start = 2048\npe_count = 99\n}}\n}}\n\
             logical_volumes {{\n{volumes}}}\n}}\n"
    )
}

/// Makes a linear volume of one segment.
pub fn linear(name: &str, first: u64, extents: u64, more: &str) -> String {
    format!(
        "{name} {{\nid = \"y\"\nstatus = [\"READ\", \"WRITE\", \"VISIBLE\"]\n{more}segment_count = 1\nsegment1 {{\n\
             start_extent = 0\nextent_count = {extents}\ntype = \"striped\"\nstripe_count = 1\n\
             stripes = [\"pv0\", {first}]\n}}\n}}\n"
    )
}

/// Counts reads of a disk.
pub struct Counted<'a> {
    file: &'a std::fs::File,
    reads: u64,
}

impl ReadBytes for Counted<'_> {
    fn read(&mut self, at: u64, target: &mut [u8]) -> Option<()> {
        self.reads += 1;
        self.file.read_exact_at(target, at).ok()
    }
}

pub fn counted(disk: &Disk, bytes: u64) -> (Layout, u64) {
    let mut source = Counted { file: disk.file.as_file(), reads: 0 };
    let layout = recognise(&mut source, bytes);
    (layout, source.reads)
}

/// Returns the place of the inode of a journal.
pub fn journal_inode_at(disk: &Disk, block_bytes: u64) -> u64 {
    let said = run("debugfs", &["-R", "imap <8>", disk.path()], "");
    let (_, place) = said.split_once("located at block ").unwrap();
    let (block, offset) = place.trim().split_once(", offset 0x").unwrap();
    block.parse::<u64>().unwrap() * block_bytes + u64::from_str_radix(offset, 16).unwrap()
}
