//! An image on a block device: its size is fixed, and the space behind the image holds arbitrary
//! data. Some devices return arbitrary data after a discard, too.

use std::time::Duration;

use fastrand::Rng;
use flowstone_block::{Errno, Op};
use flowstone_fileio::FileIo;
use flowstone_sim::{Call, Fault, SimDisk};
use flowstone_testkit::wait_until;

use super::basic::any_change;
use super::fixture::{Guest, checked, contents, extent, new_disk, open};

const SECTORS: u64 = 500;
const CLUSTER_BYTES: u64 = 4096;
const DEVICE_BYTES: u64 = 2 << 20;
const NOISE: u8 = 0xa5;

/// A new image at the start of a device that is full of noise.
fn device(garbage: bool, seed: u64) -> SimDisk {
    device_of(DEVICE_BYTES, garbage, seed)
}

fn device_of(device_bytes: u64, garbage: bool, seed: u64) -> SimDisk {
    let image = new_disk(SECTORS, CLUSTER_BYTES).to_bytes();
    let mut bytes = vec![NOISE; device_bytes as usize];
    bytes[..image.len()].copy_from_slice(&image);
    let disk = SimDisk::from_bytes(&bytes);
    disk.inject(Fault::fail(Errno::OPNOTSUPP).on(Call::SetSize).always());
    if garbage {
        disk.leave_garbage_after_discards(seed);
    }
    disk
}

#[test]
fn small_writes_to_new_clusters_of_a_device_bring_no_noise_along() {
    for (seed, garbage) in (0..8).flat_map(|seed| [(seed, false), (seed, true)]) {
        println!("seed {seed}, garbage after discards: {garbage}");
        let disk = device(garbage, seed);
        let mut random = Rng::with_seed(seed);
        let mut model = vec![0; SECTORS as usize * 512];
        for _session in 0..2 {
            let image = open(&disk);
            let mut guest = Guest::new(&image);
            for step in 0..60 {
                let op = any_change(&mut random, &mut model, step);
                guest.run(op, step).unwrap();
                if step % 9 == 0 {
                    guest.run(Op::Flush, 0).unwrap();
                    // Freed clusters may be reused soon.
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
            drop(guest);
            assert!(contents(&image) == model);
            drop(image);
            assert_eq!(checked(&disk, false).errors, Vec::<String>::new());
        }
    }
}

/// Zeroing all free space of a terabyte takes hours on such a device, and flushes wait for it.
#[test]
fn free_space_of_a_device_that_does_not_punch_is_zeroed_when_it_is_needed() {
    let disk = device(true, 1);
    let last = |disk: &SimDisk| {
        let mut byte = [0];
        disk.read_at(DEVICE_BYTES - 1, &mut byte);
        byte[0]
    };
    let idle = open(&disk);
    std::thread::sleep(Duration::from_millis(100));
    drop(idle);
    let mut before = vec![0; DEVICE_BYTES as usize];
    disk.read_at(0, &mut before);
    let noise = before.iter().filter(|byte| **byte == NOISE).count() as u64;
    assert!(
        noise > DEVICE_BYTES - (1 << 20),
        "free space was zeroed ahead: {noise} bytes are left"
    );
    // A device that punches does so, in time.
    let disk = device(false, 1);
    assert!(disk.discards_to_zeroes());
    let image = open(&disk);
    wait_until("free space is given back", || last(&disk) != NOISE);
    drop(image);
}

/// The guest's discards are passed to the device, although the range will have to be zeroed later.
#[test]
fn a_device_that_does_not_punch_is_told_of_discards() {
    let disk = device(true, 1);
    let image = open(&disk);
    let mut guest = Guest::new(&image);
    guest.run(Op::Write(extent(0, 400)), 7).unwrap();
    guest.run(Op::Flush, 0).unwrap();
    let sevens = |disk: &SimDisk| disk.to_bytes().iter().filter(|byte| **byte == 7).count();
    let before = sevens(&disk);
    assert!(before >= 400 * 512);
    guest.run(Op::Discard(extent(0, 400)), 0).unwrap();
    guest.run(Op::Flush, 0).unwrap();
    wait_until("the device is told", || sevens(&disk) <= before / 10);
    drop(guest);
}

/// A thin device that was full for a moment, or did not answer: all free space of the image was
/// forgotten at the first write, and writes failed until the image was reopened.
#[test]
fn free_space_that_a_device_could_not_zero_for_a_moment_is_not_lost() {
    for errno in [Errno::NOSPC, Errno::IO] {
        let disk = device(true, 1);
        let image = open(&disk);
        let mut guest = Guest::new(&image);
        disk.inject(Fault::fail(errno).on(Call::Punch).always());
        for first in (0..40).step_by(8) {
            let _ = guest.run(Op::Write(extent(first, 8)), 3);
        }
        assert_eq!(guest.run(Op::Write(extent(100, 300)), 5), Err(Errno::NOSPC));
        disk.clear_faults();
        disk.inject(Fault::fail(Errno::OPNOTSUPP).on(Call::SetSize).always());
        wait_until("writes go on", || guest.run(Op::Write(extent(0, 400)), 7).is_ok());
        guest.run(Op::Flush, 0).unwrap();
        assert!(contents(&image)[..400 * 512].iter().all(|byte| *byte == 7));
        drop(guest);
        drop(image);
        assert_eq!(checked(&disk, false).errors, Vec::<String>::new());
    }
}

/// Found by a replay on 95 % of a drive: freed clusters are free after the next commit only, which
/// was not due for seconds, and writes failed although a device had room.
#[test]
fn a_full_device_has_the_room_that_a_commit_frees() {
    for garbage in [false, true] {
        let disk = device_of(96 * CLUSTER_BYTES, garbage, 1);
        let image = open(&disk);
        let mut guest = Guest::new(&image);
        for content in 1..20 {
            guest.run(Op::Write(extent(0, 400)), content).unwrap();
            guest.run(Op::Discard(extent(0, 400)), 0).unwrap();
        }
        guest.run(Op::Write(extent(0, 400)), 20).unwrap();
        guest.run(Op::Flush, 0).unwrap();
        assert!(contents(&image)[..400 * 512].iter().all(|byte| *byte == 20));
        drop(guest);
        drop(image);
        assert_eq!(checked(&disk, false).errors, Vec::<String>::new());
    }
}

/// The clusters that a commit frees may still be read.
#[test]
fn a_write_without_room_waits_for_those_who_read_what_was_discarded() {
    let disk = device_of(96 * CLUSTER_BYTES, false, 1);
    let image = open(&disk);
    let (mut guest, mut reader) = (Guest::new(&image), Guest::new(&image));
    guest.run(Op::Write(extent(0, 400)), 1).unwrap();
    // In flight until its queue looks.
    reader.submit(Op::Read(extent(0, 8)), 0);
    guest.run(Op::Discard(extent(0, 400)), 0).unwrap();
    guest.submit(Op::Write(extent(0, 400)), 2);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(guest.poll().map(|done| done.outcome), None, "it waits");
    assert_eq!(reader.next().outcome, Ok(()));
    assert_eq!(guest.next().outcome, Ok(()));
    guest.run(Op::Flush, 0).unwrap();
    assert!(contents(&image)[..400 * 512].iter().all(|byte| *byte == 2));
}
