//! Hand-written logs of XFS.

use flowstone_block::{Sector, SectorCount};

use super::*;
use crate::volume::{Piece, Volume};

const SECTOR: usize = 512;
/// Sectors of the log.
const LOG: std::ops::Range<u64> = 20_000..20_512;
const GROUP_BLOCKS: u64 = 1000;

const START: u8 = 1;
const COMMIT: u8 = 2;
const CONTINUES: u8 = 4;
const WAS_CONTINUED: u8 = 8;

/// An operation of transaction 7: flags and region.
type Operation = (u8, Vec<u8>);

fn buffer(sector: u64, sectors: u16, flags: u16) -> Vec<u8> {
    let mut region = vec![0x3C, 0x12, if flags & 2 == 0 { 2 } else { 1 }, 0];
    region.extend(flags.to_le_bytes());
    region.extend(sectors.to_le_bytes());
    region.extend(sector.to_le_bytes());
    region.extend([1, 0, 0, 0, 0xFF, 0, 0, 0]);
    region
}

fn inode(sector: u64, sectors: u32) -> Vec<u8> {
    let mut region = vec![0; 56];
    region[..4].copy_from_slice(&[0x3B, 0x12, 2, 0]);
    region[40..48].copy_from_slice(&sector.to_le_bytes());
    region[48..52].copy_from_slice(&sectors.to_le_bytes());
    region
}

fn inode_create(group: u32, block: u32, blocks: u32) -> Vec<u8> {
    let mut region = vec![0; 28];
    region[..4].copy_from_slice(&[0x3F, 0x12, 1, 0]);
    for (at, number) in [(4, group), (8, block), (20, blocks)] {
        region[at..at + 4].copy_from_slice(&number.to_be_bytes());
    }
    region
}

fn begin() -> [Operation; 2] {
    let mut transaction = 0x5452_414E_u32.to_le_bytes().to_vec();
    transaction.resize(16, 0);
    [(START, Vec::new()), (0, transaction)]
}

/// Makes a transaction of these regions.
fn transaction(regions: &[Vec<u8>]) -> Vec<Operation> {
    let regions = regions.iter().map(|region| (0, region.clone()));
    begin().into_iter().chain(regions).chain([(COMMIT, Vec::new())]).collect()
}

fn body(operations: &[Operation]) -> Vec<u8> {
    let mut body = Vec::new();
    for (flags, region) in operations {
        body.extend(7_u32.to_be_bytes());
        body.extend((region.len() as u32).to_be_bytes());
        body.extend([0x69, *flags, 0, 0]);
        body.extend(region);
    }
    body
}

/// Makes a record of the log with this sequence number.
fn record(sequence: u64, operations: &[Operation], buffer_bytes: u32) -> Vec<u8> {
    let mut body = body(operations);
    let mut header = vec![0; SECTOR * (buffer_bytes as usize / 32768).max(1)];
    let numbers = [(0, 0xFEED_BABE), (4, 5), (8, 2), (12, body.len() as u32)];
    let more = [(40, operations.len() as u32), (300, 1), (320, buffer_bytes)];
    for (at, number) in numbers.into_iter().chain(more) {
        header[at..at + 4].copy_from_slice(&number.to_be_bytes());
    }
    header[16..24].copy_from_slice(&sequence.to_be_bytes());
    // The old content of a buffer is written with the record that fills a part of it.
    let stale = self::body(&[(0, buffer(4000, 8, 0))]);
    let behind = stale.into_iter().cycle().take(body.len().next_multiple_of(SECTOR) - body.len());
    body.extend(behind.collect::<Vec<_>>());
    for (nth, sector) in body.chunks_exact_mut(SECTOR).enumerate() {
        let at = if nth < 64 { 44 } else { nth / 64 * SECTOR + 4 } + nth % 64 * 4;
        header[at..at + 4].copy_from_slice(&sector[..4]);
        sector[..4].copy_from_slice(&5_u32.to_be_bytes());
    }
    [header, body].concat()
}

fn log() -> Journal {
    let volume = Volume::new([Piece { start: 0, disk: 0, bytes: 64 << 20 }]);
    let kind = Kind::Xfs { group_blocks: GROUP_BLOCKS };
    Journal { uuid: [1; 16], volume, block_bytes: 4096, kind, pieces: Box::new([LOG]) }
}

/// Writes to the log.
fn write(list: &List, start: u64, bytes: &[u8]) {
    let mut reader = list.reader.lock().unwrap();
    reader.write = bytes.to_vec();
    if reader.read(&list.blocks, (0, &log()), start).is_none() {
        list.forget(&mut reader);
    }
}

fn is_listed(list: &List, start: u64, count: u64) -> bool {
    list.contains(Extent::new(Sector::new(start), SectorCount::new(count)).unwrap())
}

/// Operations that list all kinds: a buffer, inodes, new inodes, each with regions that look like
/// other items.
fn lists_all() -> Vec<Operation> {
    transaction(&[
        buffer(800, 8, 0),
        buffer(4000, 8, 0),
        inode(1600, 32),
        buffer(4000, 8, 0),
        inode_create(2, 10, 8),
        // A header of an allocation group.
        buffer(1, 1, 0),
        vec![0; 128],
    ])
}

fn all_is_listed(list: &List) -> bool {
    let new = (2 * GROUP_BLOCKS + 10) * 8;
    is_listed(list, 800, 8)
        && is_listed(list, 1600, 32)
        && is_listed(list, new, 64)
        && ![808, 1632, 4000, 0, new - 8, new + 64].into_iter().any(|at| is_listed(list, at, 8))
}

#[test]
fn items_list_what_they_change_until_it_is_cancelled() {
    let list = List::default();
    write(&list, LOG.start, &record(1, &lists_all(), 32768));
    assert!(all_is_listed(&list));
    // Freed inodes are in the transaction that cancels their buffer, in any order.
    let freed = [inode(1600, 32), vec![0; 176], buffer(1600, 32, 2), inode(1600, 32), vec![0; 176]];
    write(&list, LOG.start + 9, &record(2, &transaction(&freed), 32768));
    assert!(!is_listed(&list, 1600, 8) && !is_listed(&list, 1624, 8) && is_listed(&list, 800, 8));
    // The space is reused for something else.
    let used_again = [buffer(1600, 8, 0), vec![0; 128]];
    write(&list, LOG.start + 20, &record(3, &transaction(&used_again), 32768));
    assert!(is_listed(&list, 1600, 8) && !is_listed(&list, 1608, 8));
}

#[test]
fn records_come_in_any_pieces() {
    let cancel = transaction(&[buffer(2400, 8, 2)]);
    let whole = [record(1, &lists_all(), 32768), record(2, &cancel, 32768)].concat();
    let sectors = whole.len() / SECTOR;
    assert!(sectors > 3);
    for cut in 1..sectors {
        // The log wraps around at the cut, or does not.
        for start in [LOG.start, LOG.end - cut as u64] {
            let list = List::default();
            let (first, second) = whole.split_at(cut * SECTOR);
            write(&list, start, first);
            let next = if start == LOG.start { start + cut as u64 } else { LOG.start };
            write(&list, next, second);
            assert!(all_is_listed(&list), "{cut} at {start}");
            write(&list, LOG.start + 100, second);
            // It begins with the rest of an unknown record.
            let begins = second.starts_with(&0xFEED_BABE_u32.to_be_bytes());
            assert_eq!(is_listed(&list, 800, 8), begins, "{cut}");
        }
    }
}

#[test]
fn a_record_has_as_many_headers_as_its_buffer_needs() {
    let filling = || [buffer(3200, 8, 0), vec![0x3C; 4096]].concat();
    let mut regions: Vec<Vec<u8>> = Vec::new();
    for nth in 0..30 {
        regions.extend([buffer(8 * nth, 8, 0), filling()]);
    }
    let list = List::default();
    write(&list, LOG.start, &record(1, &transaction(&regions), 128 << 10));
    assert!(is_listed(&list, 0, 240) && !is_listed(&list, 3200, 8));
}

/// In areas of old records the guest writes headers alone.
#[test]
fn headers_alone_say_nothing() {
    let list = List::default();
    write(&list, LOG.start, &record(1, &lists_all(), 32768));
    let header = record(0, &lists_all(), 32768)[..SECTOR].to_vec();
    write(&list, LOG.start + 100, &header.repeat(50));
    assert!(all_is_listed(&list));
    write(&list, LOG.start + 150, &record(2, &transaction(&[buffer(800, 8, 2)]), 32768));
    assert!(!is_listed(&list, 800, 8) && is_listed(&list, 1600, 8));
}

/// A record may end anywhere, also in a cancelled operation.
#[test]
fn what_is_cancelled_across_two_records_is_not_listed() {
    let regions = [buffer(2400, 8, 0), vec![0; 128], buffer(800, 8, 2), inode_create(1, 1, 1)];
    let whole = transaction(&regions);
    for cut in 2..whole.len() - 1 {
        for at in (0..=whole[cut].1.len()).step_by(4) {
            let list = List::default();
            write(&list, LOG.start, &record(1, &lists_all(), 32768));
            let (before, behind) = (whole[..cut].to_vec(), whole[cut + 1..].to_vec());
            let (first, second) = whole[cut].1.split_at(at);
            let (first, second) = match at {
                0 => (Vec::new(), vec![(0, second.to_vec())]),
                _ if second.is_empty() => (vec![(0, first.to_vec())], Vec::new()),
                _ => {
                    let first = vec![(CONTINUES, first.to_vec())];
                    (first, vec![(WAS_CONTINUED, second.to_vec())])
                }
            };
            write(&list, LOG.start + 10, &record(2, &[before, first].concat(), 32768));
            write(&list, LOG.start + 20, &record(3, &[second, behind].concat(), 32768));
            assert!(!is_listed(&list, 800, 8), "operation {cut} is cut at {at}");
        }
    }
}

/// Queues of a guest may be reordered.
#[test]
fn a_record_that_comes_late_lists_nothing_that_a_newer_one_has_taken_back() {
    let list = List::default();
    write(&list, LOG.start + 10, &record(3, &transaction(&[buffer(800, 8, 2)]), 32768));
    let late = [buffer(800, 8, 0), vec![0; 128], buffer(1600, 8, 0), vec![0; 128]];
    write(&list, LOG.start, &record(2, &transaction(&late), 32768));
    assert!(!is_listed(&list, 800, 8) && is_listed(&list, 1600, 8));
}

#[test]
fn an_unmounted_file_system_lists_nothing() {
    let list = List::default();
    write(&list, LOG.start, &record(1, &lists_all(), 32768));
    write(&list, LOG.start + 10, &record(2, &[(0x20, vec![0; 8])], 32768));
    assert!(!is_listed(&list, 800, 8));
}

#[test]
fn random_mistakes_are_survived() {
    let list = List::default();
    let sound = [record(1, &lists_all(), 65536), record(2, &lists_all(), 32768)].concat();
    let mut random = fastrand::Rng::with_seed(34);
    for _ in 0..50_000 {
        let mut log = sound.clone();
        for _ in 0..random.usize(1..8) {
            let at = random.usize(0..log.len());
            log[at] = if random.bool() { random.u8(..) } else { log[at] ^ 1 << random.u8(0..8) };
        }
        let (from, to) = (random.usize(0..3), random.usize(3..=log.len() / SECTOR));
        write(&list, LOG.start + random.u64(0..3), &log[from * SECTOR..to * SECTOR]);
    }
    list.journal_is_unreadable();
    write(&list, LOG.start, &record(9, &lists_all(), 32768));
    assert!(all_is_listed(&list));
}
