//! Tests of reads from the backing file, in the queue's own ring.

use fastrand::Rng;
use flowstone_block::{Errno, Op};
use flowstone_sim::{Call, Fault, Schedule, SimDisk};

use super::fixture::{Guest, contents, extent, new_overlay, open_on, raw};

const SECTOR: usize = 512;
const CLUSTER: u64 = 4096;
const CLUSTERS: u64 = 24;
const SECTORS: u64 = CLUSTERS * CLUSTER / SECTOR as u64;
/// The backing file is shorter than the disk, and does not end at a cluster boundary.
const BASE_SECTORS: u64 = SECTORS * 3 / 4 + 1;

fn base() -> (SimDisk, Vec<u8>) {
    let bytes: Vec<u8> =
        (0..BASE_SECTORS as usize * SECTOR).map(|at| (at / SECTOR) as u8 | 1).collect();
    (SimDisk::from_bytes(&bytes), bytes)
}

/// Every other cluster is in the image itself; the others are in the backing file, and zero beyond
/// its end. Each read covers all three.
#[test]
fn a_read_is_put_together_from_image_and_backing_file_without_a_thread() {
    for seed in 0..20 {
        let (below, mut expected) = base();
        expected.resize(SECTORS as usize * SECTOR, 0);
        let disk = new_overlay(SECTORS, CLUSTER);
        let image = open_on(&disk, Some(raw(&below)));
        let mut guest = Guest::new(&image);
        for cluster in (0..CLUSTERS).step_by(2) {
            let place = extent(cluster * 8, 8);
            guest.run(Op::Write(place), 0xe0).unwrap();
            expected[(cluster * CLUSTER) as usize..][..CLUSTER as usize].fill(0xe0);
        }
        // The first writes had to wait for room. A request that is handed over starts a new thread.
        image.slow_path.stop();
        for shuffled in [&disk, &below] {
            shuffled.set_schedule(Schedule::Shuffled { seed });
        }
        let mut random = Rng::with_seed(seed);
        let mut guest = Guest::new(&image);
        let places: Vec<(u64, u64)> = (0..200)
            .map(|_| (random.u64(..SECTORS), random.u64(1..40)))
            .map(|(start, count)| (start, count.min(SECTORS - start)))
            .collect();
        for batch in places.chunks(16) {
            let tags: Vec<u32> = batch
                .iter()
                .map(|(start, count)| guest.submit(Op::Read(extent(*start, *count)), 0x55))
                .collect();
            while guest.in_flight > 0 {
                guest.next().outcome.unwrap();
            }
            for ((start, count), tag) in batch.iter().zip(tags) {
                let (from, bytes) = (*start as usize * SECTOR, *count as usize * SECTOR);
                assert!(guest.data(tag) == &expected[from..from + bytes], "{start}+{count}");
            }
        }
        assert_eq!(image.slow_path.threads(), 0, "a read was handed to a thread");
        assert!(contents(&image) == expected);
    }
}

#[test]
fn an_error_of_the_backing_file_fails_the_request_that_met_it() {
    let (below, _) = base();
    let disk = new_overlay(SECTORS, CLUSTER);
    let image = open_on(&disk, Some(raw(&below)));
    let mut guest = Guest::new(&image);
    guest.run(Op::Write(extent(8, 8)), 2).unwrap();
    below.inject(Fault::fail(Errno::IO).on(Call::Read));
    // Two parts from the backing file, one of which fails, and one from the image.
    assert_eq!(guest.run(Op::Read(extent(0, 24)), 0), Err(Errno::IO));
    assert_eq!(guest.run(Op::Read(extent(0, 24)), 0), Ok(()));
    assert_eq!(guest.run(Op::Flush, 0), Ok(()), "a read has nothing to lose");
}

#[test]
fn a_queue_that_goes_away_waits_for_its_reads_from_below() {
    let (below, expected) = base();
    below.set_schedule(Schedule::Shuffled { seed: 5 });
    let disk = new_overlay(SECTORS, CLUSTER);
    let image = open_on(&disk, Some(raw(&below)));
    let mut guest = Guest::new(&image);
    let tag = guest.submit(Op::Read(extent(0, 16)), 0x55);
    let data = guest.close(tag);
    assert!(data == expected[..16 * SECTOR]);
}

#[test]
fn a_kick_starts_what_is_read_from_below() {
    use flowstone_block::{AlignedBuf, IoVec, Layer, QueueContext, QueueDepth, Request};

    let (below, _) = base();
    let disk = new_overlay(SECTORS, CLUSTER);
    let image = open_on(&disk, Some(raw(&below)));
    // Loads the table into memory.
    Guest::new(&image).run(Op::Read(extent(0, 8)), 0).unwrap();
    let mut memory = AlignedBuf::zeroed(8 * SECTOR);
    let mut channel = image.channel(&QueueContext::alone(QueueDepth(8)).unwrap()).unwrap();
    let mut request = Request::new(Op::Read(extent(0, 8)), 0);
    // SAFETY: the memory outlives the channel.
    request.memory.push(unsafe { IoVec::of(&mut memory) });
    channel.submit(request);
    channel.kick();
    // No call of `next_look` comes in between.
    let mut done = Vec::new();
    channel.reap(&mut done);
    let outcomes: Vec<_> = done.iter().map(|completion| completion.outcome).collect();
    drop(channel);
    assert_eq!(outcomes, [Ok(())]);
}
