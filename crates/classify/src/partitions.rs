//! Partition tables: MBR with its chain of logical partitions, and GPT.
//!
//! Source: UEFI 2.10, chapter 5. Addresses in tables count the logical blocks of the disk that they
//! were made on. Checksums of a GPT are not verified: a wrong table costs classes only, and the
//! header is checked against its own fields.

use crate::fields::{le16, le32, le64};
use crate::layout::Builder;
use crate::volume::{Scan, Volume};

/// The most partitions of a disk.
const PARTITIONS_MAX: usize = 128;
const SECTOR_BYTES: u64 = 512;

const MBR_SIGNATURE: u16 = 0xAA55;
const MBR_ENTRIES_AT: usize = 446;
const MBR_ENTRY_BYTES: usize = 16;
/// The whole disk is one GPT.
const TYPE_PROTECTIVE: u8 = 0xEE;
/// Extended partitions: a chain of logical partitions.
const TYPES_EXTENDED: [u8; 3] = [0x05, 0x0F, 0x85];

const GPT_SIGNATURE: &[u8] = b"EFI PART";
const GPT_ENTRY_BYTES: usize = 128;

/// A partition, in bytes of the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    pub start: u64,
    pub bytes: u64,
}

/// A partition table.
#[derive(Debug)]
pub struct Table {
    pub kind: &'static str,
    pub partitions: Vec<Partition>,
}

/// Reads the partition table of a disk; `None` if it has none. Adds its definers to `layout`.
pub fn read(disk: &Volume, scan: &mut Scan<'_>, layout: &mut Builder) -> Option<Table> {
    let sector: [u8; 512] = disk.read_array(scan, 0)?;
    if le16(&sector, 510) != MBR_SIGNATURE {
        return None;
    }
    let entries = mbr_entries(&sector, scan.block_bytes(), disk.bytes())?;
    if entries.iter().any(|entry| entry.kind == TYPE_PROTECTIVE) {
        return [512, 4096].into_iter().find_map(|block| gpt(disk, scan, block, layout));
    }
    let mut partitions = Vec::new();
    for entry in entries {
        if TYPES_EXTENDED.contains(&entry.kind) {
            logical_partitions(disk, scan, &entry.partition, &mut partitions, layout);
        } else {
            partitions.push(entry.partition);
        }
    }
    partitions.truncate(PARTITIONS_MAX);
    layout.definer(disk, 0..SECTOR_BYTES);
    Some(Table { kind: "mbr", partitions })
}

struct MbrEntry {
    kind: u8,
    partition: Partition,
}

/// Returns the entries in use. The boot sector of a file system has other data in their place:
/// `None` if one of them is invalid, or none is in use.
fn mbr_entries(sector: &[u8; 512], block: u64, disk_bytes: u64) -> Option<Vec<MbrEntry>> {
    let entries = sector[MBR_ENTRIES_AT..510].chunks_exact(MBR_ENTRY_BYTES);
    let mut found = Vec::new();
    for entry in entries {
        let (status, kind) = (entry[0], entry[4]);
        let (start, count) = (u64::from(le32(entry, 8)), u64::from(le32(entry, 12)));
        if status & 0x7F != 0 {
            return None;
        }
        if kind == 0 || count == 0 {
            continue;
        }
        let (start, bytes) = (start * block, count * block);
        if start == 0 || start >= disk_bytes {
            return None;
        }
        found.push(MbrEntry { kind, partition: Partition { start, bytes } });
    }
    (!found.is_empty()).then_some(found)
}

/// Follows the chain: each record has one partition, relative to itself, and the next record,
/// relative to the extended partition.
fn logical_partitions(
    disk: &Volume,
    scan: &mut Scan<'_>,
    extended: &Partition,
    partitions: &mut Vec<Partition>,
    layout: &mut Builder,
) -> Option<()> {
    let block = scan.block_bytes();
    let mut record = extended.start;
    let mut records = Vec::new();
    // In any order: partitions are deleted and recreated. A cyclic chain would never end.
    while records.len() < PARTITIONS_MAX && !records.contains(&record) {
        records.push(record);
        let sector: [u8; 512] = disk.read_array(scan, record)?;
        layout.definer(disk, record..record + SECTOR_BYTES);
        if le16(&sector, 510) != MBR_SIGNATURE {
            return None;
        }
        let entry = |nth: usize| {
            let at = MBR_ENTRIES_AT + nth * MBR_ENTRY_BYTES;
            let (start, count) =
                (u64::from(le32(&sector, at + 8)), u64::from(le32(&sector, at + 12)));
            (sector[at + 4] != 0 && count != 0).then_some((start * block, count * block))
        };
        if let Some((start, bytes)) = entry(0) {
            partitions.push(Partition { start: record.checked_add(start)?, bytes });
        }
        let (next, _) = entry(1)?;
        record = extended.start.checked_add(next)?;
    }
    Some(())
}

fn gpt(disk: &Volume, scan: &mut Scan<'_>, block: u64, layout: &mut Builder) -> Option<Table> {
    let header: [u8; 92] = disk.read_array(scan, block)?;
    let entries_at = le64(&header, 72).checked_mul(block)?;
    let (entries, entry_bytes) = (le32(&header, 80) as usize, le32(&header, 84) as usize);
    if &header[..8] != GPT_SIGNATURE
        || !entry_bytes.is_power_of_two()
        || !(GPT_ENTRY_BYTES..=4096).contains(&entry_bytes)
    {
        return None;
    }
    let mut table = vec![0; entries.min(PARTITIONS_MAX) * entry_bytes];
    disk.read(scan, entries_at, &mut table)?;
    layout.definer(disk, 0..block + header.len() as u64);
    layout.definer(disk, entries_at..entries_at + table.len() as u64);
    let in_use = table.chunks_exact(entry_bytes).filter(|entry| entry[..16] != [0; 16]);
    let partitions = in_use.filter_map(|entry| {
        let (first, last) = (le64(entry, 32), le64(entry, 40));
        let blocks = last.checked_sub(first)?.checked_add(1)?;
        Some(Partition { start: first.checked_mul(block)?, bytes: blocks.checked_mul(block)? })
    });
    Some(Table { kind: "gpt", partitions: partitions.collect() })
}
