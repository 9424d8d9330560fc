//! Reads, writes, zeroes and discards of one queue, against a disk in memory.

use fastrand::Rng;
use flowstone_block::{Layer, Op, SectorCount};
use flowstone_fileio::FileIo;
use flowstone_image::Image;

use super::fixture::{Guest, assert_clean, contents, extent, new_disk, open, open_read_only};

const SECTORS: u64 = 2048;

/// Returns any operation that changes the disk, and applies it to `model`.
pub fn any_change(random: &mut Rng, model: &mut [u8], stamp: u8) -> Op {
    let sectors = model.len() as u64 / 512;
    let start = random.u64(..sectors);
    let longest = if random.u8(..4) == 0 { 600 } else { 20 };
    let count = random.u64(1..=longest).min(sectors - start);
    let extent = extent(start, count);
    let range = start as usize * 512..(start + count) as usize * 512;
    match random.u8(..10) {
        0 | 1 => {
            model[range].fill(0);
            Op::Discard(extent)
        }
        2 => {
            model[range].fill(0);
            Op::WriteZeroes { extent, unmap: random.bool() }
        }
        _ => {
            model[range].fill(stamp);
            Op::Write(extent)
        }
    }
}

#[test]
fn what_is_written_is_read_again_with_clusters_of_every_size() {
    for cluster_bits in [9, 12, 16, 21] {
        let mut random = Rng::with_seed(cluster_bits);
        let disk = new_disk(SECTORS, 1 << cluster_bits);
        let mut model = vec![0; SECTORS as usize * 512];
        for round in 0..4 {
            let image = open(&disk);
            let mut guest = Guest::new(&image);
            for step in 0..100u8 {
                let op = any_change(&mut random, &mut model, step + 1);
                guest.run(op, step + 1).unwrap();
                if random.u8(..20) == 0 {
                    guest.run(Op::Flush, 0).unwrap();
                }
            }
            assert!(contents(&image) == model, "clusters of 2^{cluster_bits}, round {round}");
            drop(guest);
            drop(image);
            assert_clean(&disk);
            let image = open_read_only(&disk).unwrap();
            assert!(contents(&image) == model, "clusters of 2^{cluster_bits}, round {round}");
        }
    }
}

#[test]
fn discarded_clusters_are_punched_and_used_again() {
    let disk = new_disk(SECTORS, 4096);
    let image = open(&disk);
    let mut guest = Guest::new(&image);
    let whole = extent(0, SECTORS);
    guest.run(Op::Write(whole), 1).unwrap();
    guest.run(Op::Flush, 0).unwrap();
    let full = disk.allocated_bytes().unwrap();
    for _ in 0..10 {
        guest.run(Op::Discard(whole), 0).unwrap();
        guest.run(Op::Flush, 0).unwrap();
        let has_it_back = || disk.allocated_bytes().unwrap() < full / 8;
        flowstone_testkit::wait_until("the host has the space back", has_it_back);
        guest.run(Op::Write(whole), 2).unwrap();
        guest.run(Op::Flush, 0).unwrap();
    }
    drop(guest);
    drop(image);
    assert!(disk.size().unwrap() < 2 * SECTORS * 512, "the file has not grown");
    assert_clean(&disk);
}

#[test]
fn a_clean_image_is_left_as_it_was() {
    let disk = new_disk(SECTORS, 4096);
    let before = disk.to_bytes();
    drop(open(&disk));
    assert!(disk.to_bytes() == before);
}

#[test]
fn a_disk_grows_and_shrinks() {
    let disk = new_disk(64, 512);
    let image = open(&disk);
    let mut guest = Guest::new(&image);
    guest.run(Op::Write(extent(0, 64)), 7).unwrap();
    image.resize(SectorCount::new(40_000)).unwrap();
    guest.run(Op::Write(extent(39_000, 1000)), 8).unwrap();
    assert!(image.resize(SectorCount::new(39_500)).is_err(), "there is data");
    guest.run(Op::Discard(extent(39_500, 500)), 0).unwrap();
    image.resize(SectorCount::new(39_500)).unwrap();
    drop(guest);
    drop(image);
    assert_clean(&disk);
    let image = open(&disk);
    assert_eq!(image.geometry().capacity, SectorCount::new(39_500));
    let found = contents(&image);
    assert!(found[..64 * 512].iter().all(|byte| *byte == 7));
    assert!(found[64 * 512..39_000 * 512].iter().all(|byte| *byte == 0));
    assert!(found[39_000 * 512..].iter().all(|byte| *byte == 8));
}
