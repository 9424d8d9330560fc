//! Tests of images that are damaged, or made by an attacker.

use fastrand::Rng;

use super::super::fuzzing::{Patch, small_image, survive};
use super::super::{Opening, Qcow2Image};
use super::fixture::{assert_clean, checked, contents, number, open, open_read_only};
use flowstone_block::{BlockingDisk, Errno, Sector};
use flowstone_fileio::FileIo;
use flowstone_sim::SimDisk;

const CLUSTER: u64 = 4096;

fn put(disk: &SimDisk, at: u64, value: u64) {
    disk.write_at(at, &value.to_be_bytes());
}

/// A small image, with the offsets of its L1 table and its first L2 table.
fn sample() -> (SimDisk, u64, u64) {
    let disk = SimDisk::from_bytes(small_image(12));
    let l1 = number(&disk, 40);
    let l2 = number(&disk, l1) & 0x00ff_ffff_ffff_fe00;
    (disk, l1, l2)
}

fn open_error(disk: &SimDisk) -> String {
    let file = Box::new(disk.clone());
    let opening = Opening::to(flowstone_fileio::Access::Write);
    let opened = Qcow2Image::open(std::path::Path::new("image"), file, opening);
    opened.err().expect("a refusal").to_string()
}

#[test]
fn tables_that_lie_on_each_other_are_refused() {
    let (disk, l1, l2) = sample();
    // The header, the refcount table, a refcount block, the L1 table itself.
    for target in [CLUSTER, 2 * CLUSTER, l1] {
        put(&disk, l1, 1 << 63 | target);
        assert!(open_error(&disk).contains("two tables"), "{target:#x}");
        assert!(checked(&disk, false).error_count > 0);
    }
    for target in [l2 + 512, 1 << 40] {
        put(&disk, l1, 1 << 63 | target);
        assert!(open_error(&disk).contains("does not name a table"), "{target:#x}");
    }
}

/// The last cluster was padded before the image was examined.
#[test]
fn an_image_of_odd_length_that_is_refused_keeps_its_length() {
    let (whole, l1, l2) = sample();
    let mut bytes = whole.to_bytes();
    bytes.resize(bytes.len() + 700, 0);
    type Break = fn(&SimDisk, u64, u64);
    let breaks: [Break; 3] = [
        |disk, l1, _| put(disk, l1, 1 << 63 | CLUSTER),
        |disk, _, l2| put(disk, l2 + 8, 1 << 63 | 1 << 40),
        |disk, _, _| put(disk, 88, 1 << 63),
    ];
    for damage in breaks {
        let disk = SimDisk::from_bytes(&bytes);
        damage(&disk, l1, l2);
        open_error(&disk);
        assert_eq!(disk.size().unwrap(), bytes.len() as u64);
    }
    let disk = SimDisk::from_bytes(&bytes);
    drop(open(&disk));
    assert!(disk.size().unwrap().is_multiple_of(CLUSTER));
    assert_clean(&disk);
}

#[test]
fn entries_that_name_tables_or_nothing_are_refused_and_found() {
    for target in [CLUSTER, 2 * CLUSTER, 1 << 40, 512] {
        let (disk, _, l2) = sample();
        put(&disk, l2 + 8, 1 << 63 | target);
        assert!(open_error(&disk).contains("L2 table 0"), "{target:#x}");
        assert!(checked(&disk, false).error_count > 0, "{target:#x}");
        // It can still be read, as far as it is valid.
        let image = open_read_only(&disk).unwrap();
        let mut guest = BlockingDisk::new(&image).unwrap();
        let mut cluster = vec![0; CLUSTER as usize];
        guest.read(Sector::new(16), &mut cluster).unwrap();
        assert!(cluster.iter().all(|byte| *byte == 2));
        if target == 1 << 40 || target == 512 {
            assert_eq!(guest.read(Sector::new(8), &mut cluster), Err(Errno::IO));
        }
    }
}

#[test]
fn refcounts_that_are_too_low_are_found_and_repaired() {
    let (disk, _, l2) = sample();
    let before = contents(&open_read_only(&disk).unwrap());
    let host = (number(&disk, l2 + 8) & 0x00ff_ffff_ffff_fe00) / CLUSTER;
    let block = number(&disk, number(&disk, 48));
    disk.write_at(block + 2 * host, &[0, 0]);
    assert!(open_error(&disk).contains("counted as free"));
    // One for the count, one for the COPIED flag that disagrees with it.
    assert_eq!(checked(&disk, false).error_count, 2);
    let report = checked(&disk, true);
    assert_eq!((report.error_count, report.repairs.len()), (0, 1));
    assert_clean(&disk);
    assert!(contents(&open(&disk)) == before);
}

#[test]
fn leaks_are_found_and_given_back() {
    let (disk, _, l2) = sample();
    put(&disk, l2 + 8, 0);
    let full = disk.allocated_bytes().unwrap();
    let report = checked(&disk, false);
    assert_eq!((report.error_count, report.leaked_bytes), (0, CLUSTER));
    assert_eq!(checked(&disk, true).leaked_bytes, 0);
    assert_eq!(disk.allocated_bytes().unwrap(), full - CLUSTER);
    assert_clean(&disk);
}

#[test]
fn a_file_that_has_been_cut_is_refused_or_found_out() {
    let bytes = small_image(12);
    for kept in (1..bytes.len() / CLUSTER as usize).step_by(7) {
        let disk = SimDisk::from_bytes(&bytes[..kept * CLUSTER as usize]);
        open_error(&disk);
    }
}

#[test]
fn random_damage_neither_panics_nor_goes_on_for_ever() {
    let mut random = Rng::with_seed(4);
    for round in 0..300 {
        let patches: Vec<Patch> = (0..random.u8(1..4))
            .map(|_| {
                let bytes = match random.u8(..3) {
                    0 => vec![0xff; 8],
                    1 => random.u64(..).to_be_bytes().to_vec(),
                    _ => (random.u64(..300) * 512).to_be_bytes().to_vec(),
                };
                // Tables lie at the start, and header fields at the start of that.
                let at = if random.bool() { random.u32(..112) } else { random.u32(..30_000) };
                Patch { at: at / 4 * 4, bytes }
            })
            .collect();
        let length = (round % 10 == 0).then(|| random.usize(..small_image(9).len()));
        survive(if round % 2 == 0 { 9 } else { 12 }, &patches, length);
    }
}
