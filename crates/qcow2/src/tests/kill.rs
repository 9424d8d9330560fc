//! The daemon is killed. The host stays up, so all completed changes must be there afterwards, and
//! discarded data must not come back.

use fastrand::Rng;
use flowstone_block::Op;
use flowstone_image::Image;

use super::basic::any_change;
use super::compact::disorder;
use super::fixture::{Guest, checked, contents, extent, new_disk, number};
use super::host::Host;

const SECTORS: u64 = 1500;

fn killed_again_and_again(seed: u64, cluster_bytes: u64) {
    let mut random = Rng::with_seed(seed);
    let host = if seed.is_multiple_of(2) { Host::with_memory() } else { Host::of_a_server() };
    let mut disk = new_disk(SECTORS, cluster_bytes);
    let mut model = vec![0; SECTORS as usize * 512];
    for round in 0..8 {
        let image = host.open(&disk);
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
        let killed = host.kill(&disk, seed);
        drop(guest);
        drop(image);
        disk = host.bring_back(killed);
        assert!(host.read(&disk) == model, "seed {seed}, round {round}");
    }
    let image = host.open(&disk);
    assert!(contents(&image) == model, "seed {seed}, at the end");
    drop(image);
    assert!(!host.redo().exists(), "closed in order, there is nothing to remember");
    assert_eq!(checked(&disk, true).errors, Vec::<String>::new());
    assert!(contents(&host.open(&disk)) == model);
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
        let host = Host::new();
        let disk = new_disk(800 * cluster_bytes / 512, cluster_bytes);
        disorder(&host.open(&disk), cluster_bytes / 512, seed);
        let image = host.open(&disk);
        let model = contents(&image);
        let killed = std::thread::scope(|scope| {
            let compacted = scope.spawn(|| image.compact(&mut |_, _| {}));
            std::thread::sleep(std::time::Duration::from_micros(random.u64(..30_000)));
            // Nothing is recorded, dropped or reused meanwhile.
            let stopped = image.core.meta();
            let killed = host.kill(&disk, seed);
            drop(stopped);
            compacted.join().unwrap().unwrap();
            killed
        });
        drop(image);
        let killed = host.bring_back(killed);
        assert!(host.read(&killed) == model, "seed {seed}");
        let image = host.open(&killed);
        assert!(contents(&image) == model, "seed {seed}");
        image.compact(&mut |_, _| {}).unwrap();
        assert!(contents(&image) == model, "seed {seed}, at the end");
        drop(image);
        assert_eq!(checked(&killed, true).errors, Vec::<String>::new());
    }
}

#[test]
fn what_other_software_has_written_since_is_left_alone() {
    let host = Host::new();
    let disk = new_disk(SECTORS, 4096);
    let image = host.open(&disk);
    let mut guest = Guest::new(&image);
    guest.run(Op::Write(extent(0, 8)), 1).unwrap();
    let killed = host.kill(&disk, 1);
    drop((guest, image));
    let killed = host.bring_back(killed);
    assert_eq!(number(&killed, 88) >> 63, 1);
    killed.write_at(88, &[0; 8]);
    let image = host.open(&killed);
    assert!(contents(&image).iter().all(|byte| *byte == 0));
}

/// A power cut may take a file that is not durable: with its mark in the header the image would be
/// refused, as if the file had been removed. So the mark is written after the sync of the redo
/// file, and not at all if that fails.
#[test]
fn an_image_does_not_name_a_redo_file_that_is_not_durable() {
    use super::super::redo::HOST_FAILS_TO_SYNC;
    const AUTOCLEAR: u64 = 88;
    let (host, disk) = (Host::new(), new_disk(1500, 4096));
    for fails in [true, false] {
        HOST_FAILS_TO_SYNC.set(fails);
        let image = host.open(&disk);
        HOST_FAILS_TO_SYNC.set(false);
        assert_eq!(number(&disk, AUTOCLEAR) == 0, fails);
        assert_eq!(host.redos().is_empty(), fails, "one stays behind that nothing names");
        drop(image);
    }
}
