//! Images made by an attacker, with valid checksums: opening and checking end in bounded time,
//! without a panic.

use std::path::Path;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use flowstone_fileio::Access;
use flowstone_image::DiscardMode;
use flowstone_log_format::{
    Address, Entry, HeadPlace, Header, Incarnation, Kind, RootPlace, SegmentId, Sequence,
};
use flowstone_sim::SimDisk;

use crate::check::check;
use crate::corrupter::Corrupter;
use crate::disk::LogImage;
use crate::fuzzing::{Left, small_image};

/// Far longer than any of this may take.
const HANGS: Duration = flowstone_testkit::HANG;

fn corrupter(left: Left) -> Corrupter {
    Corrupter::new(small_image(left).to_vec())
}

/// Opens and checks an image, each in bounded time. The result does not matter.
fn ends(corrupter: Corrupter) {
    let bytes = corrupter.into_bytes();
    let (done, is_done) = channel();
    thread::spawn(move || {
        let disk = SimDisk::from_bytes(&bytes);
        let _ = check("x.flow", &disk, true, true, &mut |_, _| {});
        for access in [Access::Read, Access::Write] {
            let file = Box::new(disk.clone());
            let _ = LogImage::open(
                Path::new("x.flow"),
                file,
                DiscardMode::Deallocate,
                access,
                None,
                None,
            );
        }
        done.send(()).unwrap();
    });
    assert!(is_done.recv_timeout(HANGS).is_ok(), "it panics, or goes on for ever");
}

const HEADER: Header = Header {
    incarnation: Incarnation::new(0, 1),
    sequence: Sequence::FIRST,
    durable: Sequence::FIRST,
    generation: 0,
    position: 0,
    kind: Kind::Seal,
    payload_blocks: 0,
    link: 0,
};

fn incarnation_of(segment: SegmentId) -> Incarnation {
    Incarnation::from_bits(77_000 + u64::from(segment.get()))
}

/// Opening examined the segment of a root without blocks.
#[test]
fn the_place_of_a_root_without_blocks_does_not_matter() {
    let mut corrupter = corrupter(Left::Closed);
    let mut superblock = corrupter.superblock();
    superblock.root = RootPlace { address: Address::new(u32::MAX), ..RootPlace::default() };
    corrupter.set_superblock(&superblock);
    ends(corrupter);
}

/// Seals of guests must have the next sequence number; those of copies have an order of their own,
/// and formed a cycle.
#[test]
fn seals_of_copies_that_lead_in_a_circle_end() {
    let mut corrupter = corrupter(Left::Killed);
    let mut superblock = corrupter.superblock();
    let shape = superblock.shape();
    let heads = superblock.heads.map(|head| head.segment);
    let mut free: Vec<SegmentId> =
        SegmentId::range(1..superblock.segments).filter(|it| !heads.contains(it)).collect();
    free.reverse();
    for (from, to) in [(0, 1), (1, 0)] {
        let incarnation = incarnation_of(free[from]);
        let header = Header { incarnation, link: free[to].get().into(), ..HEADER };
        let next = Entry::Next { incarnation: incarnation_of(free[to]) };
        corrupter.set_record(shape.address(free[from], 0), &header, &[next]);
    }
    superblock.heads[2] =
        HeadPlace { incarnation: incarnation_of(free[0]), segment: free[0], block: 0 };
    corrupter.set_superblock(&superblock);
    ends(corrupter);
}

/// One more than the payload overflowed to zero blocks: a walk from record to record stood still.
#[test]
fn a_record_of_four_billion_blocks_is_none() {
    let blocks = u32::MAX;
    let entries = [Entry::Root { blocks, checksum: 0 }];
    // A segment that no seal leads to, with a record of guests that seems to be a later one.
    let mut stray = corrupter(Left::Killed);
    let superblock = stray.superblock();
    let shape = superblock.shape();
    let heads = superblock.heads.map(|head| head.segment);
    let named: Vec<SegmentId> = stray.root().segments.iter().map(|note| note.segment).collect();
    let replayed: Vec<SegmentId> =
        stray.replayed().iter().map(|(at, ..)| shape.segment_of(*at)).collect();
    let header = Header {
        kind: Kind::Writes,
        sequence: Sequence::new(1 << 40),
        payload_blocks: blocks,
        ..HEADER
    };
    let is_free =
        |it: &SegmentId| !heads.contains(it) && !named.contains(it) && !replayed.contains(it);
    for segment in SegmentId::range(1..superblock.segments).filter(is_free) {
        stray.set_record(shape.address(segment, 0), &header, &entries);
    }
    ends(stray);
    // In the place of every record with payload.
    let mut corrupter = corrupter(Left::Closed);
    for (at, header, _) in corrupter.records() {
        let header = Header { payload_blocks: blocks, ..header };
        corrupter.set_record(at, &header, &entries);
    }
    ends(corrupter);
}
