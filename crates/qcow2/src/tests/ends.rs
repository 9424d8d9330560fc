//! Tests of threads that cannot start, or panic while requests wait for them, and of the close.

use std::collections::BTreeSet;
use std::path::Path;

use flowstone_block::{BlockingDisk, Channel, Errno, Op, QueueContext, QueueDepth, Request};
use flowstone_fileio::Access;
use flowstone_image::{Image, Wait};
use flowstone_sim::{Call, Fate, Fault, Schedule, SimDisk};
use flowstone_sim::{Deadly, Wrapped, wait_until};

use super::super::{Opening, Qcow2Image};
use super::fixture::{Guest, contents, extent, new_disk, new_overlay, open_with_much_memory, raw};
use super::host::{Host, SECTORS};

const CLUSTER: u64 = 8;

fn open(file: &Deadly, backing: Option<Box<dyn Image>>) -> Qcow2Image {
    let opening = Opening { backing, ..Opening::to(Access::Write) };
    Qcow2Image::open(Path::new("image"), file.file(), opening).unwrap()
}

/// Regression: without a thread, or a descriptor for it, the image was refused after its mark, and
/// stayed as after a kill.
#[test]
fn an_image_without_a_maintenance_worker_is_not_marked() {
    for host in [Host::new(), Host::with_memory()] {
        let disk = new_disk(SECTORS, 4096);
        drop(host.open(&disk));
        let before = disk.to_bytes();
        let file = Wrapped::refusing(&disk, "maintenance");
        let refusal = host.open_file(Box::new(file)).err().unwrap().to_string();
        assert!(refusal.contains("Too many open files"), "{refusal}");
        assert!(disk.to_bytes() == before, "it is marked");
        assert!(host.redos().is_empty() && host.lives().is_empty());
    }
}

/// Regression: a close that failed was a line of the log, and the exit status 0.
#[test]
fn a_close_that_fails_says_so() {
    for call in [Call::SetSize, Call::Datasync] {
        let disk = new_disk(SECTORS, 4096);
        let image = open_with_much_memory(&disk, None);
        Guest::new(&image).run(Op::Write(extent(0, 8)), 7).unwrap();
        disk.inject(Fault::fail(Errno::IO).on(call).always());
        let failed = image.close().unwrap_err().to_string();
        assert!(failed.starts_with("close image: Input/output error"), "{failed}");
        image.close().unwrap();
    }
}

/// Without a redo file no later sync covers it.
#[test]
fn what_was_written_in_place_is_durable_after_a_close() {
    let disk = new_disk(SECTORS, 4096);
    let image = open_with_much_memory(&disk, None);
    Guest::new(&image).run(Op::Write(extent(0, 8)), 7).unwrap();
    image.close().unwrap();
    let image = open_with_much_memory(&disk, None);
    Guest::new(&image).run(Op::Write(extent(0, 8)), 8).unwrap();
    image.close().unwrap();
    let crashed = disk.crash_at(disk.now(), &mut Fate::nothing_more());
    assert!(contents(&open_with_much_memory(&crashed, None))[..4096].iter().all(|it| *it == 8));
}

/// Its request was dropped without a completion, and the cluster stayed locked: the next write of
/// it waited for ever, and so did the stop of the disk.
#[test]
fn a_request_comes_back_when_the_thread_of_the_slow_path_that_has_it_panics() {
    let file = Deadly::new(&new_overlay(64 * CLUSTER, CLUSTER * 512));
    let image = open(&file, Some(raw(&SimDisk::from_bytes(&[5; 64 * 4096]))));
    let mut guest = Guest::new(&image);
    for _ in 0..20 {
        // A part of a cluster, whose rest is copied from the backing file.
        file.kill("slow-path");
        assert_eq!(guest.run(Op::Write(extent(0, 1)), 1), Err(Errno::IO));
    }
    guest.run(Op::Write(extent(0, 1)), 2).unwrap();
    guest.run(Op::Flush, 0).unwrap();
    let tag = guest.submit(Op::Read(extent(0, CLUSTER)), 0);
    guest.next().outcome.unwrap();
    assert!(guest.data(tag)[..512] == [2; 512] && guest.data(tag)[512..] == [5; 3584]);
}

#[test]
fn a_discard_comes_back_when_the_thread_that_has_it_panics() {
    let file = Deadly::new(&new_disk(64 * CLUSTER, CLUSTER * 512));
    let image = open(&file, None);
    let mut guest = Guest::new(&image);
    guest.run(Op::Write(extent(0, CLUSTER)), 1).unwrap();
    file.kill("trims");
    // A part of a cluster is zeroed in the file.
    assert_eq!(guest.run(Op::Discard(extent(0, 1)), 0), Err(Errno::IO));
    guest.run(Op::Discard(extent(0, 1)), 0).unwrap();
    guest.run(Op::Discard(extent(0, CLUSTER)), 0).unwrap();
}

/// A map that a thread has left half changed is not written.
#[test]
fn nothing_is_promised_when_a_thread_has_panicked_in_the_middle_of_a_change() {
    let disk = new_disk(64 * CLUSTER, CLUSTER * 512);
    let image = open(&Deadly::new(&disk), None);
    let mut guest = Guest::new(&image);
    guest.run(Op::Write(extent(0, CLUSTER)), 1).unwrap();
    guest.run(Op::Flush, 0).unwrap();
    let core = std::sync::Arc::clone(&image.core);
    let thread = std::thread::spawn(move || {
        let _meta = core.meta();
        panic!("a test's own panic");
    });
    thread.join().unwrap_err();
    guest.run(Op::Write(extent(CLUSTER, CLUSTER)), 2).unwrap();
    assert_eq!(guest.run(Op::Flush, 0), Err(Errno::IO));
    guest.run(Op::Read(extent(0, 1)), 0).unwrap();
}

/// A flush that waits for a commit, and requests that first wait for room or for a commit.
#[test]
fn all_that_wait_for_the_maintenance_worker_come_back_when_it_panics() {
    let file = Deadly::new(&new_disk(64 * CLUSTER, CLUSTER * 512));
    let image = open(&file, None);
    let mut guest = Guest::new(&image);
    guest.run(Op::Write(extent(0, CLUSTER)), 1).unwrap();
    guest.run(Op::Flush, 0).unwrap();
    let context = QueueContext::alone(QueueDepth(8)).unwrap();
    let mut channel = image.queue(&context).unwrap();
    file.kill("maintenance");
    guest.run(Op::Write(extent(CLUSTER, CLUSTER)), 1).unwrap();
    channel.submit(Request::new(Op::Flush, 0));
    // It may be dead already: changes are committed after a while.
    assert!(channel.waits().is_subset(&BTreeSet::from([Wait::MapCommit])));
    let mut done = Vec::new();
    wait_until("the flush is back", || {
        channel.reap(&mut done);
        !done.is_empty()
    });
    assert_eq!(done[0].outcome, Err(Errno::IO));
    file.wait();
    assert_eq!(guest.run(Op::Flush, 0), Err(Errno::IO));
    let mut refused = 0;
    for cluster in 2..64 {
        // Without a worker the file does not grow.
        refused += u32::from(guest.run(Op::Write(extent(cluster * CLUSTER, CLUSTER)), 2).is_err());
    }
    println!("{refused} writes without room");
    guest.run(Op::Read(extent(0, CLUSTER)), 0).unwrap();
}

/// Data that a failed write has left in a new cluster is punched before the cluster is reused.
#[test]
fn what_a_failed_write_has_left_in_a_new_cluster_is_not_seen_in_another_one() {
    let disk = new_disk(1500, CLUSTER * 512);
    let image = open(&Deadly::new(&disk), None);
    let mut guest = Guest::new(&image);
    disk.inject(Fault::fail_partly(Errno::IO).on(Call::Write));
    guest.run(Op::Write(extent(0, CLUSTER)), 7).unwrap_err();
    let mut write = |cluster: u64| {
        guest.run(Op::Write(extent(cluster * CLUSTER, 1)), 2).unwrap();
        let tag = guest.submit(Op::Read(extent(cluster * CLUSTER, CLUSTER)), 0);
        guest.next().outcome.unwrap();
        let bytes = guest.data(tag);
        assert!(bytes[..512] == [2; 512] && bytes[512..] == [0; 3584], "cluster {cluster}");
    };
    (10..14).for_each(&mut write);
    BlockingDisk::new(&image).unwrap().run(Op::Flush).unwrap();
    wait_until("the cluster is punched", || image.discards().merged > 0);
    (30..60).for_each(&mut write);
}

/// An exclusive change waits for the writes that fill the cluster; their queue is dropped.
#[test]
fn a_request_goes_on_when_the_queue_that_fills_its_cluster_is_dropped() {
    let disk = new_disk(64 * CLUSTER, CLUSTER * 512);
    disk.set_schedule(Schedule::Shuffled { seed: 1 });
    let image = open(&Deadly::new(&disk), None);
    let mut fills = Guest::new(&image);
    // The slow path creates the table; a write that finds it claims its cluster at once.
    fills.run(Op::Write(extent(8 * CLUSTER, CLUSTER)), 3).unwrap();
    // Completions of a queue are seen when it looks, not before.
    let filling = fills.submit(Op::Write(extent(0, 1)), 1);
    let mut waits = Guest::new(&image);
    waits.submit(Op::Discard(extent(0, CLUSTER)), 0);
    waits.submit(Op::WriteZeroes { extent: extent(0, CLUSTER), unmap: false }, 0);
    for _ in 0..100 {
        assert!(waits.poll().is_none(), "the cluster is claimed");
    }
    fills.close(filling);
    for _ in 0..2 {
        waits.next().outcome.unwrap();
    }
}
