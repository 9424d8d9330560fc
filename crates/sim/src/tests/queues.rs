//! Channels: order, visibility, threads.

use std::thread;

use flowstone_block::{Errno, NextLook};

use super::*;
use crate::Schedule;

fn shuffled(bytes: u64, seed: u64) -> SimDisk {
    let disk = SimDisk::new(bytes);
    disk.set_schedule(Schedule::Shuffled { seed });
    disk
}

fn tags(done: &[FileCompletion]) -> Vec<usize> {
    done.iter().map(|completion| completion.tag).collect()
}

/// Returns the order in which forty writes complete.
fn order(disk: &SimDisk) -> Vec<usize> {
    let mut queue = Queue::new(disk);
    for n in 0..40 {
        queue.submit(write(n * 512, 512), n as u8);
    }
    tags(&queue.finish(40))
}

#[test]
fn order_is_that_of_submission_or_that_of_the_seed() {
    assert!(order(&SimDisk::new(1 << 20)).is_sorted());
    let disk = shuffled(1 << 20, 3);
    let (first, second) = (order(&disk), order(&disk));
    assert!(!first.is_sorted() && first != second, "channels share an order");
    assert_eq!(order(&shuffled(1 << 20, 3)), first);
    assert_ne!(order(&shuffled(1 << 20, 4)), first);
    let mut sorted = first;
    sorted.sort_unstable();
    assert!(sorted.into_iter().eq(0..40), "each completes once");
}

#[test]
fn a_write_is_seen_when_it_completes_and_not_before() {
    let disk = shuffled(1 << 20, 1);
    let mut queue = Queue::new(&disk);
    for n in 0..40 {
        queue.submit(write(n * 512, 512), 1);
    }
    assert_eq!(look(&disk, 0), 0, "not even started");
    queue.channel.kick();
    let mut done = Vec::new();
    let mut partly = 0;
    while done.len() < 40 {
        queue.channel.reap(&mut done);
        partly += u32::from(!done.is_empty() && done.len() < 40);
        for n in 0..40 {
            let complete = tags(&done).contains(&n);
            assert_eq!(look(&disk, n as u64 * 512) == 1, complete, "write {n}");
        }
    }
    assert!(partly > 0, "all completed at once");
}

#[test]
fn a_read_gets_its_data_and_no_more_than_there_is() {
    for disk in [SimDisk::new(2048), shuffled(2048, 9)] {
        put(&disk, 512, 1024, 6);
        let mut queue = Queue::new(&disk);
        queue.submit(read(0, 2048), 0xee);
        queue.finish(1)[0].outcome.unwrap();
        let found = &queue.held[0].0;
        assert!(found[..512].iter().chain(&found[1536..]).all(|byte| *byte == 0));
        assert!(found[512..1536].iter().all(|byte| *byte == 6));
        assert_eq!(disk.run(read(1536, 1024), &mut [0; 1024]), Err(Errno::IO));
    }
}

#[test]
fn what_direct_io_would_refuse_is_refused() {
    let disk = SimDisk::new(8192);
    assert_eq!(disk.run(write(100, 512), &mut [0; 512]), Err(Errno::INVAL));
    assert_eq!(disk.run(read(0, 100), &mut [0; 100]), Err(Errno::INVAL));
    assert_eq!(disk.run(punch(0, 0), &mut []), Err(Errno::INVAL));
    assert_eq!(disk.run(allocate(u64::MAX - 1, 9), &mut []), Err(Errno::FBIG));
    assert_eq!(disk.now(), disk.crash_points().next().unwrap(), "a refusal made history");
}

#[test]
fn a_thread_that_is_about_to_sleep_gives_the_disk_time() {
    let disk = shuffled(1 << 20, 5);
    let mut queue = Queue::new(&disk);
    let mut done = Vec::new();
    queue.submit(write(0, 512), 1);
    assert_eq!(queue.channel.next_look(), NextLook::Now);
    assert_eq!(look(&disk, 0), 1, "nothing was done");
    queue.channel.reap(&mut done);
    assert_eq!(done.len(), 1);
    assert_eq!(queue.channel.next_look(), NextLook::OnWake, "nothing is in flight");
}

#[test]
fn dropping_a_channel_completes_what_is_in_flight() {
    for disk in [SimDisk::new(4096), shuffled(4096, 2)] {
        let mut queue = Queue::new(&disk);
        queue.submit(write(0, 512), 1);
        queue.channel.kick();
        queue.submit(write(512, 512), 1);
        drop(queue);
        assert_eq!((look(&disk, 0), look(&disk, 512)), (1, 1));
    }
}

#[test]
fn several_threads_use_one_disk() {
    let disk = shuffled(1 << 20, 8);
    thread::scope(|scope| {
        for lane in 0..4u64 {
            let disk = &disk;
            scope.spawn(move || {
                let mut queue = Queue::new(disk);
                for n in 0..64 {
                    queue.submit(write((n * 4 + lane) * 512, 512), lane as u8 + 1);
                    queue.submit(FileOp::Datasync, 0);
                }
                assert_eq!(queue.finish(128).len(), 128);
            });
        }
    });
    for sector in 0..256 {
        assert_eq!(look(&disk, sector * 512), (sector % 4) as u8 + 1);
    }
    // One event each for beginning and end, and the moment before the first.
    assert_eq!(disk.crash_points().count(), 4 * 128 * 2 + 1);
}

#[test]
fn holes_space_and_size_are_as_on_a_host() {
    let disk = SimDisk::new(1 << 30);
    put(&disk, 1 << 20, 4096, 1);
    disk.run(allocate(8 << 20, 1 << 20), &mut []).unwrap();
    assert_eq!(disk.allocated_bytes().unwrap(), 4096 + (1 << 20));
    let data = disk.next_data(FileOffset::new(0)).unwrap().unwrap();
    assert_eq!((data.start.get(), data.end.get()), (1 << 20, (1 << 20) + 4096));
    assert_eq!(disk.next_data(data.end).unwrap(), None);
    disk.run(punch(0, 2 << 20), &mut []).unwrap();
    disk.run(zero(8 << 20, 4096), &mut []).unwrap();
    assert_eq!(disk.allocated_bytes().unwrap(), 1 << 20);
    disk.run(allocate((1 << 30) - 4096, 8192), &mut []).unwrap();
    assert_eq!(disk.size().unwrap(), (1 << 30) + 4096);
    disk.set_size(4096).unwrap();
    assert_eq!((disk.size().unwrap(), disk.allocated_bytes().unwrap()), (4096, 0));
}
