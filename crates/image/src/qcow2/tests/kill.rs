//! The daemon is killed. The host lives on, so whatever has completed must be there afterwards, and
//! what was discarded must not come back.

use std::path::{Path, PathBuf};

use fastrand::Rng;
use flowstone_block::Op;
use flowstone_fileio::Access;
use flowstone_sim::{Fate, SimDisk};

use super::super::{Memory, Qcow2Image};
use super::basic::any_change;
use super::compact::disorder;
use super::fixture::{Guest, checked, contents, new_disk};
use crate::{DiscardMode, Image};

const SECTORS: u64 = 1500;

fn open(disk: &SimDisk, path: &Path) -> Qcow2Image {
    let file = Box::new(disk.clone());
    let memory = Memory::Beside(path);
    Qcow2Image::open(path, file, None, DiscardMode::Deallocate, Access::Write, memory).unwrap()
}

fn redo_of(path: &Path) -> PathBuf {
    path.with_extension("redo")
}

/// What a reader sees of an image whose daemon was killed.
fn seen_by_a_reader(disk: &SimDisk, path: &Path) -> Vec<u8> {
    let file = Box::new(disk.clone());
    let memory = Memory::Beside(path);
    let mode = DiscardMode::Deallocate;
    contents(&Qcow2Image::open(path, file, None, mode, Access::Read, memory).unwrap())
}

/// What stays behind when the daemon is killed now: first what it remembers, then the disk, which
/// may meanwhile have become newer but not older than that.
fn kill(disk: &SimDisk, path: &Path, seed: u64) -> SimDisk {
    let remembered = std::fs::read(redo_of(path)).unwrap();
    let killed = disk.kill_at(disk.now(), &mut Fate::seeded(seed));
    std::fs::write(path.with_extension("kept"), remembered).unwrap();
    killed
}

/// A folder with something in the place of an image.
fn place() -> (tempfile::TempDir, PathBuf) {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("image");
    std::fs::write(&path, "").unwrap();
    (place, path)
}

fn killed_again_and_again(seed: u64, cluster_bytes: u64) {
    let mut random = Rng::with_seed(seed);
    let (_place, path) = place();
    let mut disk = new_disk(SECTORS, cluster_bytes);
    let mut model = vec![0; SECTORS as usize * 512];
    for round in 0..8 {
        let image = open(&disk, &path);
        assert!(contents(&image) == model, "seed {seed}, round {round}");
        let mut guest = Guest::new(&image);
        for step in 0..random.u8(1..60) {
            let op = any_change(&mut random, &mut model, step + 1);
            guest.run(op, step + 1).unwrap();
            if random.u8(..12) == 0 {
                guest.run(Op::Flush, 0).unwrap();
            }
        }
        if random.bool() {
            // The maintenance worker is somewhere in a commit.
            guest.submit(Op::Flush, 0);
            for _ in 0..random.u32(..40_000) {
                std::hint::spin_loop();
            }
        }
        let killed = kill(&disk, &path, seed);
        drop(guest);
        drop(image);
        std::fs::rename(path.with_extension("kept"), redo_of(&path)).unwrap();
        disk = killed;
        assert!(seen_by_a_reader(&disk, &path) == model, "seed {seed}, round {round}");
    }
    let image = open(&disk, &path);
    assert!(contents(&image) == model, "seed {seed}, at the end");
    drop(image);
    assert!(!redo_of(&path).exists(), "closed in order, there is nothing to remember");
    assert_eq!(checked(&disk, true).errors, Vec::<String>::new());
    assert!(contents(&open(&disk, &path)) == model);
}

#[test]
fn what_has_completed_survives_being_killed() {
    for seed in 0..6 {
        killed_again_and_again(seed, [512, 4096, 65_536][seed as usize % 3]);
    }
}

#[test]
fn compact_survives_being_killed() {
    for seed in 0..12 {
        let mut random = Rng::with_seed(seed);
        let cluster_bytes = [512, 4096][seed as usize % 2];
        let (_place, path) = place();
        let disk = new_disk(800 * cluster_bytes / 512, cluster_bytes);
        disorder(&open(&disk, &path), cluster_bytes / 512, seed);
        let image = open(&disk, &path);
        let model = contents(&image);
        let killed = std::thread::scope(|scope| {
            let compacted = scope.spawn(|| image.compact(&mut |_, _| {}));
            std::thread::sleep(std::time::Duration::from_micros(random.u64(..30_000)));
            // Nothing is remembered, forgotten or used again meanwhile.
            let stopped = image.core.meta();
            let killed = kill(&disk, &path, seed);
            drop(stopped);
            compacted.join().unwrap().unwrap();
            killed
        });
        drop(image);
        std::fs::rename(path.with_extension("kept"), redo_of(&path)).unwrap();
        assert!(seen_by_a_reader(&killed, &path) == model, "seed {seed}");
        let image = open(&killed, &path);
        assert!(contents(&image) == model, "seed {seed}");
        image.compact(&mut |_, _| {}).unwrap();
        assert!(contents(&image) == model, "seed {seed}, at the end");
        drop(image);
        assert_eq!(checked(&killed, true).errors, Vec::<String>::new());
    }
}

#[test]
fn what_other_software_has_written_since_is_left_alone() {
    let (_place, path) = place();
    let disk = new_disk(SECTORS, 4096);
    let image = open(&disk, &path);
    let mut guest = Guest::new(&image);
    guest.run(Op::Write(super::fixture::extent(0, 8)), 1).unwrap();
    let killed = kill(&disk, &path, 1);
    drop((guest, image));
    std::fs::rename(path.with_extension("kept"), redo_of(&path)).unwrap();
    assert_eq!(super::fixture::number(&killed, 88) >> 63, 1);
    killed.write_at(88, &[0; 8]);
    let image = open(&killed, &path);
    assert!(contents(&image).iter().all(|byte| *byte == 0));
}
