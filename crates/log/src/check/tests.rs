use std::path::Path;

use flowstone_block::{BlockingDisk, Errno, Sector};
use flowstone_fileio::Access;
use flowstone_image::DiscardMode;
use flowstone_log_format::{
    Address, Entry, HeadPlace, Header, Incarnation, Kind, LIFETIME_WARM, SLOTS, SegmentId, Sequence,
};
use flowstone_sim::{Call, Fault, SimDisk};

use super::*;
use crate::LogImage;
use crate::corrupter::{Corrupter, Target};
use crate::fuzzing::{Left, Patch, blocks, content, small_image, survive};

fn corrupter(left: Left) -> Corrupter {
    Corrupter::new(small_image(left).to_vec())
}

fn check_bytes(bytes: &[u8], data: bool) -> CheckReport {
    check("x.flow", &SimDisk::from_bytes(bytes), data, true, &mut |_, _| {}).unwrap()
}

fn repair_disk(disk: &SimDisk) -> CheckReport {
    repair("x.flow", Box::new(disk.clone()), true, true, &mut |_, _| {}).unwrap()
}

fn open(disk: &SimDisk, access: Access) -> Result<LogImage> {
    LogImage::open(
        Path::new("x.flow"),
        Box::new(disk.clone()),
        DiscardMode::Deallocate,
        access,
        None,
        None,
    )
}

/// Returns the disk's blocks as a guest reads them; `None` where it gets an error.
fn blocks_of(disk: &SimDisk) -> Vec<Option<Vec<u8>>> {
    let image = open(disk, Access::Read).unwrap();
    let mut guest = BlockingDisk::new(&image).unwrap();
    let mut read = |lba| {
        let mut block = vec![0; BLOCK_BYTES];
        guest.read(Sector::new(lba * 8), &mut block).ok().map(|()| block)
    };
    (0..blocks()).map(&mut read).collect()
}

fn assert_content(disk: &SimDisk) {
    for (lba, block) in (0..).zip(blocks_of(disk)) {
        assert_eq!(block, Some(content(lba)), "LBA {lba}");
    }
}

/// Asserts that a check finds the damage, in these words, in a line that names the image.
fn found(bytes: &[u8], words: &str) -> CheckReport {
    let report = check_bytes(bytes, true);
    let line = report.errors.iter().find(|line| line.contains(words));
    assert!(line.is_some(), "`{words}` is not among {:#?}", report.errors);
    assert!(line.is_some_and(|line| line.starts_with("x.flow: ")), "{line:?}");
    report
}

/// Asserts that a check finds the damage, and that the image is not opened.
fn refused(bytes: &[u8], words: &str) -> CheckReport {
    for access in [Access::Read, Access::Write] {
        let Err(error) = open(&SimDisk::from_bytes(bytes), access) else {
            panic!("{words}: opened with {access:?}")
        };
        assert!(error.to_string().contains(words), "{error}");
    }
    found(bytes, words)
}

/// Returns a live block with its map entry.
fn a_live_block(bytes: &[u8]) -> (u64, MapEntry) {
    let superblock = Corrupter::new(bytes.to_vec()).superblock();
    let loaded = load_from(&SimDisk::from_bytes(bytes), superblock, None, |_, it| Err(it)).unwrap();
    let lba = loaded.map.next_mapped(50..blocks()).unwrap();
    (lba, loaded.map.get(lba))
}

/// Returns the header of the record that holds an address.
fn header_of(corrupter: &Corrupter, address: Address) -> (Address, Header, Vec<Entry>) {
    (0..address.get())
        .rev()
        .map(Address::new)
        .find_map(|at| corrupter.record(at).map(|(header, entries)| (at, header, entries)))
        .unwrap()
}

fn flip(bytes: &mut [u8], at: Address) {
    bytes[at.offset().get() as usize + 99] ^= 4;
}

/// Regression: the scan ended before the highest address, and computed one beyond it.
#[test]
fn a_scan_reads_up_to_the_highest_address_and_no_further() {
    let superblock = corrupter(Left::Closed).superblock();
    let (end, block) = (1_u64 << 44, BLOCK_BYTES as u64);
    for (unreadable, is_seen) in [(end - block, true), (end, false)] {
        let disk = SimDisk::new(end + 10 * block);
        disk.write_at(end - 1030 * block, &vec![1; 1040 * BLOCK_BYTES]);
        let place = unreadable..unreadable + block;
        disk.inject(Fault::fail(Errno::IO).on(Call::Read).within(place).always());
        let evidence = Evidence::gather(&disk, &superblock, Sequence::default()).unwrap();
        assert_eq!(evidence.proves_newest(&superblock), !is_seen);
    }
}

#[test]
fn sound_images_are_clean_and_hold_what_was_written() {
    for left in [Left::Closed, Left::Killed] {
        let report = check_bytes(small_image(left), true);
        assert_eq!(report.errors, [""; 0], "{left:?}");
        assert_eq!(report.readable_bytes, report.data_bytes);
        assert_eq!(report.leaked_bytes, 0);
        assert_eq!(report.notes.is_empty(), left == Left::Closed);
        let disk = SimDisk::from_bytes(small_image(left));
        assert_content(&disk);
        let before = disk.to_bytes();
        assert_eq!(repair_disk(&disk).repairs, [""; 0]);
        assert!(disk.to_bytes() == before, "a sound image is left as it is");
    }
}

#[test]
fn the_small_image_has_everything() {
    let superblock = corrupter(Left::Closed).superblock();
    assert!(superblock.totals.relocated_blocks > 0 && superblock.totals.map_blocks > 0);
    assert!(superblock.clean);
    let killed = corrupter(Left::Killed);
    assert!(!killed.superblock().clean);
    let records = killed.replayed();
    assert!(records.iter().any(|(_, header, _)| header.kind == Kind::Seal));
}

#[test]
fn damaged_data_is_found_by_reading_it_and_stays_an_error() {
    let mut bytes = small_image(Left::Closed).to_vec();
    let (lba, map_entry) = a_live_block(&bytes);
    flip(&mut bytes, map_entry.address());
    assert_eq!(check_bytes(&bytes, false).errors, [""; 0]);
    let place = format!(
        "LBA {lba} (guest byte {}) at file offset {}: its checksum does not fit",
        lba * 4096,
        map_entry.address().offset().get()
    );
    let report = found(&bytes, &place);
    assert_eq!((report.error_count, report.readable_bytes + 4096), (1, report.data_bytes));
    let disk = SimDisk::from_bytes(&bytes);
    let report = repair_disk(&disk);
    assert_eq!((report.error_count, report.repairs.len()), (1, 0));
    assert_eq!(blocks_of(&disk)[lba as usize], None, "no zeroes in place of what is lost");
}

#[test]
fn a_damaged_record_header_is_found() {
    let mut bytes = small_image(Left::Closed).to_vec();
    let (_, map_entry) = a_live_block(&bytes);
    let (header, ..) = header_of(&corrupter(Left::Closed), map_entry.address());
    flip(&mut bytes, header);
    found(&bytes, &format!("there is no record at file offset {}", header.offset().get()));
    let report = found(&bytes, "no record says so; its data is whole");
    assert_eq!(report.readable_bytes, report.data_bytes);
    // Guest reads do not need the header.
    assert_content(&SimDisk::from_bytes(&bytes));
}

#[test]
fn a_record_of_another_block_is_found() {
    let (lba, map_entry) = a_live_block(small_image(Left::Closed));
    let change = |change: &dyn Fn(&mut Entry)| {
        let mut corrupter = corrupter(Left::Closed);
        let (at, header, mut entries) = header_of(&corrupter, map_entry.address());
        entries.iter_mut().for_each(change);
        corrupter.set_record(at, &header, &entries);
        corrupter.into_bytes()
    };
    let bytes = change(&|entry| match entry {
        Entry::Data { lba: at, .. } | Entry::Moved { lba: at, .. } if *at == lba => *at += 5,
        _ => {}
    });
    found(&bytes, &format!("LBA {} is there", lba + 5));
    let bytes = change(&|entry| match entry {
        Entry::Data { lba: at, checksum } | Entry::Moved { lba: at, checksum, .. }
            if *at == lba =>
        {
            *checksum ^= 1;
        }
        _ => {}
    });
    found(&bytes, "the checksums in map and record differ");
}

#[test]
fn a_block_that_is_in_two_places_at_once_is_found() {
    let mut corrupter = corrupter(Left::Closed);
    let mut leaf = corrupter.leaf(0);
    leaf.copy_within(8 * 100..8 * 101, 8 * 180);
    corrupter.set_leaf(0, &leaf);
    found(&corrupter.into_bytes(), "LBA 100 is mapped there too");
}

#[test]
fn maps_that_cannot_be_are_refused() {
    let leaf = |change: &dyn Fn(&mut [u8])| {
        let mut corrupter = corrupter(Left::Closed);
        let mut leaf = corrupter.leaf(0);
        change(&mut leaf);
        corrupter.set_leaf(0, &leaf);
        corrupter.into_bytes()
    };
    let outside = "names a place outside the image";
    refused(&leaf(&|leaf| leaf[8..16].copy_from_slice(&u64::MAX.to_le_bytes())), outside);
    refused(&leaf(&|leaf| leaf[8..16].copy_from_slice(&5u64.to_le_bytes())), outside);
    refused(&leaf(&|leaf| leaf[8..12].fill(0)), outside);
    refused(&leaf(&|leaf| leaf.copy_within(0..8, 8 * 800)), "maps blocks beyond the disk");
    refused(&leaf(&|leaf| leaf.fill(0)), "maps nothing");
    let everywhere = leaf(&|leaf| (1..192).for_each(|lba| leaf.copy_within(0..8, 8 * lba)));
    refused(&everywhere, "more blocks are mapped to segment");

    let root = |at: usize, bytes: &[u8]| {
        let mut corrupter = corrupter(Left::Closed);
        corrupter.patch(Target::Root, at, bytes);
        corrupter.into_bytes()
    };
    refused(&root(0, &u32::MAX.to_le_bytes()), "longer than it is");
    refused(&root(4, &u32::MAX.to_le_bytes()), "longer than it is");
    refused(&root(32, &9u32.to_le_bytes()), "a leaf beyond the disk");
    refused(&root(36, &u32::MAX.to_le_bytes()), outside);
    refused(&root(40, &[1; 4]), "the checksum of map leaf 0 does not fit");
    let last = 32 + 12 + 24 * (corrupter(Left::Closed).root().segments.len() - 1);
    refused(&root(last, &[0xff; 4]), "a segment outside the image");
}

#[test]
fn a_piece_of_the_map_where_data_is_is_found() {
    let (_, map_entry) = a_live_block(small_image(Left::Closed));
    let mut corrupter = corrupter(Left::Closed);
    let leaf = corrupter.leaf(0);
    let mut root = corrupter.root();
    root.leaves[0].address = map_entry.address();
    corrupter.put(map_entry.address(), &leaf);
    corrupter.set_root(&root);
    found(&corrupter.into_bytes(), "the map itself is there");
}

#[test]
fn superblocks_that_cannot_be_are_refused() {
    let refuse = |words, change: &dyn Fn(&mut Superblock)| {
        let mut corrupter = corrupter(Left::Closed);
        let mut superblock = corrupter.superblock();
        change(&mut superblock);
        corrupter.set_superblock(&superblock);
        refused(&corrupter.into_bytes(), words);
    };
    let sizes = "sizes that cannot be";
    refuse(sizes, &|it| it.segment_blocks = 63);
    refuse(sizes, &|it| it.segment_blocks = 0);
    refuse(sizes, &|it| it.segments = u32::MAX);
    refuse(sizes, &|it| it.segments = 1);
    refuse(sizes, &|it| it.reserve_percent = 100);
    refuse(sizes, &|it| it.streams = 3);
    refuse(sizes, &|it| it.capacity_sectors = 0);
    refuse(sizes, &|it| it.capacity_sectors = u64::MAX);
    refuse("too small for its disk", &|it| it.capacity_sectors = 1 << 30);
    let numbers = "numbers that cannot be";
    refuse(numbers, &|it| it.session = u64::MAX);
    refuse(numbers, &|it| it.next_sequence = Sequence::new(u64::MAX));
    refuse(numbers, &|it| it.clock = u64::MAX);
    let outside = "a head outside the image";
    refuse(outside, &|it| it.heads[0].segment = SegmentId::new(it.segments));
    refuse(outside, &|it| it.heads[0].block = it.segment_blocks);
    refuse("heads that cannot be", &|it| it.heads[0].incarnation = Incarnation::NONE);
    refuse("heads that cannot be", &|it| it.heads[1] = it.heads[0]);
    let root = "a map root that cannot be";
    refuse(root, &|it| it.root.address = Address::new(3));
    refuse(root, &|it| it.root.address = Address::new(u32::MAX));
    refuse(root, &|it| it.root.blocks = u32::MAX);
    refuse(root, &|it| it.root.bytes = u64::MAX);
}

#[test]
fn wrong_counts_are_found() {
    let mut corrupter = corrupter(Left::Closed);
    let mut superblock = corrupter.superblock();
    superblock.totals.live_blocks += 1;
    corrupter.set_superblock(&superblock);
    found(&corrupter.into_bytes(), "live blocks, the map");
    let mut corrupter = self::corrupter(Left::Closed);
    let mut root = corrupter.root();
    let (_, map_entry) = a_live_block(small_image(Left::Closed));
    let segment = corrupter.superblock().shape().segment_of(map_entry.address());
    root.segments.retain(|note| note.segment != segment);
    corrupter.set_root(&root);
    found(&corrupter.into_bytes(), "the map root does not name it");
}

/// The loss of an older superblock's slot costs nothing; a lost newer one may have covered more.
#[test]
fn a_lost_superblock_is_replaced_only_where_that_is_safe() {
    for left in [Left::Closed, Left::Killed] {
        let newest = corrupter(left).superblock().slot();
        let older = SLOTS[usize::from(newest == SLOTS[0])];
        let mut bytes = small_image(left).to_vec();
        flip(&mut bytes, older);
        refused(&bytes, "is damaged");
        found(&bytes, "the other one is the newest, and nothing is lost");
        let disk = SimDisk::from_bytes(&bytes);
        assert_eq!(repair_disk(&disk).errors, [""; 0]);
        assert_content(&disk);
        assert_eq!(repair_disk(&disk).repairs, [""; 0]);
    }
    let mut bytes = small_image(Left::Closed).to_vec();
    flip(&mut bytes, corrupter(Left::Closed).superblock().slot());
    found(&bytes, "it may have been the newer one");
    let disk = SimDisk::from_bytes(&bytes);
    let report = repair_disk(&disk);
    assert!(report.repairs.is_empty() && report.error_count > 0, "{report:?}");
    assert!(disk.to_bytes() == bytes, "nothing was done");
    SLOTS.into_iter().for_each(|slot| bytes[slot.offset().get() as usize] = b'f');
    flip(&mut bytes, SLOTS[0]);
    assert!(check("x", &SimDisk::from_bytes(&bytes), false, true, &mut |_, _| {}).is_err());
}

/// A clean superblock whose successor was lost became valid again, and the writes of the session
/// after it were silently gone.
#[test]
fn writes_after_a_clean_superblock_are_not_forgotten() {
    let before = corrupter(Left::Closed).superblock();
    // The maintenance worker may have been quick, and made a checkpoint.
    let written = || {
        let disk = SimDisk::from_bytes(small_image(Left::Closed));
        let image = open(&disk, Access::Write).unwrap();
        let mut guest = BlockingDisk::new(&image).unwrap();
        guest.write(Sector::new(0), &mut [9; 4096]).unwrap();
        Corrupter::new(disk.to_bytes())
    };
    let is_next = |it: &Corrupter| it.superblock().generation == before.generation + 1;
    let mut corrupter = (0..1000).map(|_| written()).find(is_next).unwrap();
    // As if the superblock of the new session had never reached the medium.
    let lost = corrupter.superblock().slot();
    corrupter.put(lost, &vec![0; BLOCK_BYTES]);
    corrupter.set_superblock(&before);
    let older = Superblock { generation: before.generation - 1, ..before.clone() };
    corrupter.set_superblock(&older);
    refused(&corrupter.into_bytes(), "written to after the newest superblock");
}

#[test]
fn a_log_that_is_damaged_before_its_end_ends_there_after_repair() {
    let healthy = corrupter(Left::Killed);
    let records = healthy.replayed();
    let (at, header, _) = records[records.len() / 3];
    let mut bytes = small_image(Left::Killed).to_vec();
    flip(&mut bytes, at);
    refused(&bytes, &format!("record {} is damaged", header.sequence));
    let disk = SimDisk::from_bytes(&bytes);
    let report = repair_disk(&disk);
    assert_eq!(report.errors, [""; 0]);
    assert!(report.repairs[0].contains(&format!("ends before record {}", header.sequence)));
    let lost = |line: &String| line.starts_with("lost with record");
    assert!(report.repairs.iter().any(lost), "{:?}", report.repairs);
    let sizes: Vec<_> =
        blocks_of(&disk).into_iter().map(|block| block.map(|it| it.len())).collect();
    assert!(sizes.iter().all(|size| *size == Some(BLOCK_BYTES)), "an error remains");
    assert_eq!(repair_disk(&disk).repairs, [""; 0]);
    let image = open(&disk, Access::Write).unwrap();
    BlockingDisk::new(&image).unwrap().write(Sector::new(8), &mut [1; 4096]).unwrap();
    drop(image);
    assert_eq!(check_bytes(&disk.to_bytes(), true).errors, [""; 0]);
}

/// A damaged seal looked like the end of the log: nothing followed it in its segment.
#[test]
fn a_damaged_seal_is_not_the_end_of_the_log() {
    let healthy = corrupter(Left::Killed);
    let seal = healthy.replayed().into_iter().find(|(_, it, _)| it.kind == Kind::Seal).unwrap();
    let mut bytes = small_image(Left::Killed).to_vec();
    flip(&mut bytes, seal.0);
    refused(&bytes, &format!("record {} is damaged", seal.1.sequence));
}

/// The next segment held copies when the checkpoint was made, and the superblock still names it as
/// their head. They died, a sync freed it, and it was reused for guests.
#[test]
fn a_damaged_seal_is_found_where_copies_were_before() {
    let mut corrupter = corrupter(Left::Killed);
    let (at, seal, _) =
        corrupter.replayed().into_iter().find(|(_, it, _)| it.kind == Kind::Seal).unwrap();
    let mut superblock = corrupter.superblock();
    let segment = SegmentId::new(seal.link as u32);
    // It may name it by itself.
    if superblock.heads.iter().all(|head| head.segment != segment) {
        let copies = &mut superblock.heads[usize::from(LIFETIME_WARM)];
        *copies = HeadPlace { incarnation: Incarnation::new(1, 1), segment, block: 13 };
        corrupter.set_superblock(&superblock);
    }
    let mut bytes = corrupter.into_bytes();
    assert_eq!(check_bytes(&bytes, true).errors, [""; 0]);
    flip(&mut bytes, at);
    refused(&bytes, &format!("record {} is damaged", seal.sequence));
}

#[test]
fn a_seal_that_leads_back_is_followed_once() {
    let mut corrupter = corrupter(Left::Killed);
    let head = corrupter.superblock().heads[0];
    let (at, mut header, _) =
        corrupter.replayed().into_iter().find(|(_, it, _)| it.kind == Kind::Seal).unwrap();
    header.link = head.segment.get().into();
    corrupter.set_record(at, &header, &[Entry::Next { incarnation: head.incarnation }]);
    let bytes = corrupter.into_bytes();
    check_bytes(&bytes, true);
    let _ = open(&SimDisk::from_bytes(&bytes), Access::Write);
}

#[test]
fn records_of_impossible_lengths_are_not_followed() {
    for payload in [60, u32::MAX - 1] {
        let (_, map_entry) = a_live_block(small_image(Left::Closed));
        let mut corrupter = corrupter(Left::Closed);
        let (at, mut header, _) = header_of(&corrupter, map_entry.address());
        header.payload_blocks = payload;
        corrupter.set_record(at, &header, &[Entry::Root { blocks: payload, checksum: 0 }]);
        found(&corrupter.into_bytes(), "there is no record at file offset");
    }
}

/// A truncated copy is refused or intact, never an image with silent holes.
#[test]
fn images_cut_short_are_refused() {
    for left in [Left::Closed, Left::Killed] {
        let whole = small_image(left);
        for length in (0..whole.len()).step_by(50_003).chain([4096, 65536, 69631, 69632]) {
            let disk = SimDisk::from_bytes(&whole[..length]);
            let checked = check("x", &disk, true, true, &mut |_, _| {});
            match open(&disk, Access::Read) {
                Ok(_) => assert_content(&disk),
                Err(error) => {
                    let told = checked.is_err() || checked.is_ok_and(|it| it.error_count > 0);
                    assert!(told, "{length}: {error}, and check says nothing");
                }
            }
        }
    }
}

#[test]
fn host_errors_are_reported_where_they_are() {
    use flowstone_block::Errno;
    use flowstone_sim::{Call, Fault};
    let (lba, map_entry) = a_live_block(small_image(Left::Closed));
    let disk = SimDisk::from_bytes(small_image(Left::Closed));
    let at = map_entry.address().offset().get();
    disk.inject(Fault::fail(Errno::IO).on(Call::Read).within(at..at + 4096).always());
    let report = check("x.flow", &disk, true, true, &mut |_, _| {}).unwrap();
    assert_eq!(report.error_count, 1, "{:?}", report.errors);
    assert!(report.errors[0].contains(&format!("LBA {lba} ")), "{:?}", report.errors);
}

#[test]
fn host_space_that_belongs_to_nothing_is_given_back() {
    let mut corrupter = corrupter(Left::Closed);
    let superblock = corrupter.superblock();
    let shape = superblock.shape();
    let used: Vec<SegmentId> = corrupter.root().segments.iter().map(|note| note.segment).collect();
    let mut wasted = 0;
    // More than an image keeps ready, beyond everything in use.
    for segment in
        SegmentId::range(1..superblock.segments).filter(|segment| !used.contains(segment))
    {
        corrupter.put(shape.address(segment, 0), &vec![7; shape.segment_bytes() as usize]);
        wasted += 1;
    }
    let bytes = corrupter.into_bytes();
    let report = check_bytes(&bytes, false);
    assert_eq!(report.error_count, 0);
    if wasted > READY_MAX {
        assert!(report.leaked_bytes > 0, "{wasted} segments");
    }
    let disk = SimDisk::from_bytes(&bytes);
    let repaired = repair_disk(&disk);
    assert_eq!(repaired.leaked_bytes, 0);
    assert_eq!(repaired.repairs.is_empty(), wasted <= READY_MAX);
    assert_content(&disk);
}

/// Runs the fuzz target for a few random changes.
#[test]
fn tampered_images_are_survived() {
    tamper(0x5eed, 100);
}

/// The same for `SOAK_MINUTES`.
#[test]
#[ignore = "runs for minutes"]
fn soak_tampered_images() {
    let minutes = std::env::var("SOAK_MINUTES").ok().and_then(|text| text.parse().ok());
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60 * minutes.unwrap_or(1));
    let start = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let mut seed = start.as_nanos() as u64 | 1;
    while std::time::Instant::now() < end {
        eprintln!("seed {seed}");
        tamper(seed, 100);
        seed += 2;
    }
}

fn tamper(seed: u64, rounds: u32) {
    let mut random = Random(seed);
    for round in 0..rounds {
        let left = if round % 2 == 0 { Left::Closed } else { Left::Killed };
        let patches: Vec<Patch> = (0..1 + random.below(3)).map(|_| random.patch()).collect();
        let length = (random.below(8) == 0).then(|| random.below(1 << 22) as usize);
        // If this fails, the last line shows the case.
        eprintln!("{left:?} {length:?} {patches:?}");
        survive(left, &patches, length);
    }
}

/// A small generator of random numbers (xorshift), so that failures come back.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn patch(&mut self) -> Patch {
        let part = match self.below(8) {
            0..=2 => Target::Superblock(self.below(2) as u8),
            3 => Target::Root,
            4 => Target::Leaf(0),
            5..=6 => Target::Header(self.below(256) as u8),
            _ => Target::Anywhere(self.below(256) as u16),
        };
        let at = match part {
            Target::Header(_) => self.below(200),
            Target::Root => self.below(800),
            _ => self.below(6200),
        };
        let bytes = match self.below(4) {
            0 => vec![0xff; 1 + self.below(8) as usize],
            1 => vec![0; 1 + self.below(8) as usize],
            2 => vec![self.below(256) as u8],
            _ => self.next().to_le_bytes()[..1 + self.below(8) as usize].to_vec(),
        };
        Patch { target: part, at: at as u16, bytes }
    }
}

/// An image of this version, created once: with data, trims, copies and maps, and records after the
/// checkpoint. It must open with its content however the code changes.
///
/// Each line of the file is a block that is not all zeroes: its address, and its bytes as hex;
/// `xx*n` is one byte n times. The first line has the blocks of the file, and the blocks and the
/// checksum of the disk. It was written by `make_the_golden_image`.
#[test]
fn the_golden_image_of_version_1_opens() {
    let (bytes, blocks, checksum) = golden();
    let killed = Corrupter::new(bytes.clone());
    let kinds: Vec<Kind> = killed.records().into_iter().map(|(_, header, _)| header.kind).collect();
    for kind in [Kind::Writes, Kind::Seal, Kind::Relocated, Kind::Map] {
        assert!(kinds.contains(&kind), "{kind:?}");
    }
    let is_trim = |entry: &Entry| matches!(entry, Entry::Trim { .. });
    assert!(killed.replayed().iter().any(|(_, _, entries)| entries.iter().any(is_trim)));
    let report = check_bytes(&bytes, true);
    assert_eq!((report.errors.len(), report.leaked_bytes), (0, 0), "{:?}", report.errors);
    let disk = SimDisk::from_bytes(&bytes);
    for access in [Access::Read, Access::Write, Access::Read] {
        let image = open(&disk, access).unwrap();
        let mut content = vec![0; blocks * BLOCK_BYTES];
        BlockingDisk::new(&image).unwrap().read(Sector::new(0), &mut content).unwrap();
        assert_eq!(crc32c::crc32c(&content), checksum);
    }
    assert_eq!(check_bytes(&disk.to_bytes(), true).errors, [""; 0]);
}

const GOLDEN: &str = include_str!("../../tests/golden/v1.flow.txt");

fn golden() -> (Vec<u8>, usize, u32) {
    let mut lines = GOLDEN.lines();
    let mut first = lines.next().unwrap().split(' ');
    let mut number = |radix| usize::from_str_radix(first.next().unwrap(), radix).unwrap();
    let (file_blocks, blocks, checksum) = (number(10), number(10), number(16) as u32);
    let mut bytes = vec![0; file_blocks * BLOCK_BYTES];
    for line in lines {
        let mut words = line.split(' ');
        let start = words.next().unwrap().parse::<usize>().unwrap() * BLOCK_BYTES;
        let mut block = Vec::new();
        for word in words {
            let hex = |text: &str| u8::from_str_radix(text, 16).unwrap();
            match word.split_once('*') {
                Some((byte, count)) => {
                    block.resize(block.len() + count.parse::<usize>().unwrap(), hex(byte));
                }
                None => block.extend((0..word.len()).step_by(2).map(|at| hex(&word[at..at + 2]))),
            }
        }
        bytes[start..start + BLOCK_BYTES].copy_from_slice(&block);
    }
    (bytes, blocks, checksum)
}

/// Run by hand when a new version of the format is released, with another file name.
#[test]
#[ignore = "writes the golden image"]
fn make_the_golden_image() {
    let bytes = small_image(Left::Killed);
    let content: Vec<u8> = (0..blocks()).flat_map(content).collect();
    let mut text =
        format!("{} {} {:08x}\n", bytes.len() / BLOCK_BYTES, blocks(), crc32c::crc32c(&content));
    for (address, block) in bytes.chunks_exact(BLOCK_BYTES).enumerate() {
        if block.iter().all(|byte| *byte == 0) {
            continue;
        }
        text += &address.to_string();
        let mut literal = false;
        for run in block.chunk_by(|a, b| a == b) {
            let is_long = run.len() > 4;
            if is_long || !literal {
                text += " ";
            }
            literal = !is_long;
            if is_long {
                text += &format!("{:02x}*{}", run[0], run.len());
            } else {
                run.iter().for_each(|byte| text += &format!("{byte:02x}"));
            }
        }
        text += "\n";
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("v1.flow.txt"), text).unwrap();
}
