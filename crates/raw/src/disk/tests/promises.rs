//! Tests of requests that a queue refuses, of promises of durability, and of counters.

use std::time::{Duration, Instant};

use flowstone_image::runtime::pace::Pace;

use super::*;

/// The file would report success for the next sync. Lost data stays lost, so no request that
/// promises durability reaches the file.
#[test]
fn after_a_failed_flush_requests_that_promise_durability_do_not_reach_the_file() {
    let file = Recorder::default();
    let image = file.image();
    let [mut one, mut other] = [(); 2].map(|()| queue(&image, 8));
    file.bad_sync.store(true, Ordering::Relaxed);
    submit(&mut *one, Op::Flush, false);
    assert_eq!(reap(&mut *one), [Err(Errno::IO)]);
    file.take();
    let zeroes = Op::WriteZeroes { extent: extent(8, 1), unmap: false };
    let durable = [Op::Write(extent(8, 1)), Op::Discard(extent(8, 1)), zeroes];
    for (op, durable) in durable.map(|op| (op, true)).into_iter().chain([(Op::Flush, false)]) {
        submit(&mut *other, op, durable);
        assert_eq!(reap(&mut *other), [Err(Errno::IO)], "{op:?}");
        assert_eq!(file.take(), [], "{op:?}");
    }
    // A read promises no durability, even on a write-through disk.
    for (op, durable) in [(Op::Write(extent(8, 1)), false), (Op::Read(extent(8, 1)), true)] {
        submit(&mut *other, op, durable);
        assert_eq!(reap(&mut *other), [Ok(())], "{op:?}");
        assert_eq!(file.take().len(), 1, "{op:?}");
    }
}

#[test]
fn a_disk_that_ignores_discards_leaves_the_file_alone_and_writes_its_zeroes() {
    let file = Recorder::default();
    let boxed = Box::new(file.clone());
    let image =
        RawImage::open(Path::new("t.raw"), boxed, DiscardMode::Ignore, Access::Write).unwrap();
    let mut channel = queue(&image, 8);
    submit(&mut *channel, Op::Discard(extent(8, 1)), true);
    assert_eq!(reap(&mut *channel), [Ok(())]);
    assert_eq!(file.take(), []);
    submit(&mut *channel, Op::WriteZeroes { extent: extent(8, 1), unmap: true }, false);
    assert_eq!(reap(&mut *channel), [Ok(())]);
    assert_eq!(file.take(), [FileOp::Zero { offset: FileOffset::new(4096), bytes: 512 }]);
}

/// The discarding thread rests while guests are active. Its own work does not count as theirs.
#[test]
fn all_requests_but_discards_count_as_work_of_the_guest() {
    let image = Recorder::default().image();
    let mut channel = queue(&image, 8);
    let mut pace = Pace::default();
    let mut rests =
        || pace.rest(Duration::from_secs(1), Instant::now(), &image.activity) > Duration::ZERO;
    submit(&mut *channel, Op::Discard(extent(8, 1)), false);
    wait(&mut *channel, 1);
    assert!(!rests());
    submit(&mut *channel, Op::Write(extent(8, 1)), false);
    wait(&mut *channel, 1);
    assert!(rests());
}

fn write(durable: bool) -> FileOp {
    FileOp::Write { offset: FileOffset::new(4096), bytes: 512, durable }
}

/// Each was a sync of its own, beside those of other queues: a failure that the host reported to
/// one of them was not known to flushes that completed meanwhile.
#[test]
fn a_write_through_write_beside_a_sync_takes_its_turn() {
    let file = Recorder::default();
    let image = file.image();
    let [mut one, mut other] = [(); 2].map(|()| queue(&image, 8));
    file.held.store(true, Ordering::Relaxed);
    submit(&mut *one, Op::Flush, false);
    submit(&mut *other, Op::Write(extent(8, 1)), true);
    assert_eq!(file.take(), [FileOp::Datasync, write(false)]);
    file.held.store(false, Ordering::Relaxed);
    assert_eq!(reap(&mut *other), [], "it is not durable yet");
    file.bad_sync.store(true, Ordering::Relaxed);
    assert_eq!(reap(&mut *one), [Ok(())]);
    assert_eq!(file.take(), [FileOp::Datasync], "the queue that leads goes on for the write");
    assert_eq!(reap(&mut *other), [Err(Errno::IO)]);
    submit(&mut *one, Op::Flush, false);
    assert_eq!(reap(&mut *one), [Err(Errno::IO)]);
}

#[test]
fn of_write_through_writes_one_is_durable_by_itself_and_the_others_share_a_sync() {
    let file = Recorder::default();
    let image = file.image();
    let [mut one, mut other] = [(); 2].map(|()| queue(&image, 8));
    file.held.store(true, Ordering::Relaxed);
    submit(&mut *one, Op::Write(extent(8, 1)), true);
    submit(&mut *one, Op::Write(extent(8, 1)), true);
    submit(&mut *other, Op::Write(extent(8, 1)), true);
    assert_eq!(file.take(), [write(true), write(false), write(false)]);
    file.held.store(false, Ordering::Relaxed);
    let mut done = Vec::new();
    one.reap(&mut done);
    assert_eq!((done.len(), file.take()), (1, vec![FileOp::Datasync]));
    assert_eq!(reap(&mut *other), [], "that one began before its write was done");
    one.reap(&mut done);
    assert_eq!((done.len(), file.take()), (2, vec![FileOp::Datasync]));
    assert_eq!(reap(&mut *one), []);
    assert_eq!(reap(&mut *other), [Ok(())]);
}

/// It serves no flush: writes of others are not durable with it.
#[test]
fn a_flush_beside_a_write_through_write_has_a_sync_of_its_own() {
    let file = Recorder::default();
    let image = file.image();
    let [mut one, mut other] = [(); 2].map(|()| queue(&image, 8));
    file.held.store(true, Ordering::Relaxed);
    submit(&mut *one, Op::Write(extent(8, 1)), true);
    submit(&mut *other, Op::Flush, false);
    assert_eq!(file.take(), [write(true)]);
    file.held.store(false, Ordering::Relaxed);
    let mut done = Vec::new();
    one.reap(&mut done);
    assert_eq!((done.len(), file.take()), (1, vec![FileOp::Datasync]));
    assert_eq!(reap(&mut *other), [], "it is not back yet");
    one.reap(&mut done);
    assert_eq!(reap(&mut *other), [Ok(())]);
    assert_eq!(done.len(), 1);
}

/// The size was synced beside the guest's flushes, and a failure reported to the operator only.
#[test]
fn a_failed_sync_of_a_new_size_ends_all_promises() {
    let file = Recorder::default();
    let image = file.image();
    let mut guest = BlockingDisk::new(&image).unwrap();
    assert!(image.resize(SectorCount::new(8192)).is_ok());
    assert_eq!(file.take(), [FileOp::Datasync]);
    file.bad_sync.store(true, Ordering::Relaxed);
    let refused = image.resize(SectorCount::new(16384)).unwrap_err();
    assert!(refused.to_string().contains("restart the disk"), "{refused}");
    assert_eq!(image.geometry().capacity, SectorCount::new(8192));
    assert_eq!(guest.run(Op::Flush), Err(Errno::IO));
}

/// A resize during a queue's sync waits for its turn.
#[test]
fn a_resize_shares_the_failure_of_the_sync_that_it_waits_for() {
    let file = Recorder::default();
    let image = file.image();
    let mut channel = queue(&image, 8);
    file.held.store(true, Ordering::Relaxed);
    submit(&mut *channel, Op::Flush, false);
    std::thread::scope(|scope| {
        let operator = scope.spawn(|| image.resize(SectorCount::new(8192)));
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(file.take(), [FileOp::Datasync], "no sync of its own beside the queue's");
        file.held.store(false, Ordering::Relaxed);
        file.bad_sync.store(true, Ordering::Relaxed);
        assert_eq!(reap(&mut *channel), [Ok(())]);
        assert!(operator.join().unwrap().is_err());
    });
    submit(&mut *channel, Op::Flush, false);
    assert_eq!(reap(&mut *channel), [Err(Errno::IO)]);
}

/// It was considered a successful sync unless it failed with EIO: a device that cannot flush its
/// cache reports that with various errors, to one caller.
#[test]
fn a_write_through_write_that_fails_in_any_way_but_for_lack_of_space_ends_all_promises() {
    use Errno as E;
    for errno in [E::IO, E::REMOTEIO, E::NODATA, E::TIMEDOUT, E::NOSPC, E::DQUOT] {
        let is_full = [E::NOSPC, E::DQUOT].contains(&errno);
        let file = Recorder::default();
        let image = file.image();
        let [mut one, mut other] = [(); 2].map(|()| queue(&image, 8));
        file.held.store(true, Ordering::Relaxed);
        *file.bad_write.lock().unwrap() = Some((true, errno));
        submit(&mut *one, Op::Write(extent(8, 1)), true);
        submit(&mut *other, Op::Write(extent(8, 1)), true);
        file.held.store(false, Ordering::Relaxed);
        assert_eq!(reap(&mut *other), []);
        let expected = if is_full { Ok(()) } else { Err(E::IO) };
        assert_eq!(reap(&mut *one), [Err(errno)]);
        assert_eq!(reap(&mut *other), [expected], "{errno}: the write that shares the next sync");
        submit(&mut *other, Op::Flush, false);
        assert_eq!(reap(&mut *other), [expected], "{errno}: a flush");
    }
}

/// A host without memory to copy unaligned buffers to made all later flushes of the disk fail until
/// it was reopened, though nothing had been written or synced.
#[test]
fn a_write_through_write_that_the_host_was_not_asked_for_breaks_no_promise() {
    let file = Recorder::default();
    let image = file.image();
    let mut channel = queue(&image, 8);
    file.refused.store(true, Ordering::Relaxed);
    submit(&mut *channel, Op::Write(extent(8, 1)), true);
    assert_eq!(reap(&mut *channel), [Err(Errno::NOMEM)]);
    submit(&mut *channel, Op::Flush, false);
    submit(&mut *channel, Op::Write(extent(8, 1)), true);
    assert_eq!(reap(&mut *channel), [Ok(()); 2]);
}

/// Nothing has been synced, so only the data whose error its guest gets is lost.
#[test]
fn a_write_through_write_that_fails_before_its_sync_breaks_no_promise() {
    for errno in [Errno::IO, Errno::NOSPC] {
        let file = Recorder::default();
        let image = file.image();
        let [mut one, mut other] = [(); 2].map(|()| queue(&image, 8));
        file.held.store(true, Ordering::Relaxed);
        *file.bad_write.lock().unwrap() = Some((false, errno));
        submit(&mut *one, Op::Write(extent(8, 1)), true);
        submit(&mut *other, Op::Write(extent(8, 1)), true);
        file.held.store(false, Ordering::Relaxed);
        assert_eq!(reap(&mut *other), [Err(errno)]);
        assert_eq!(reap(&mut *one), [Ok(())]);
        submit(&mut *other, Op::Flush, false);
        assert_eq!(reap(&mut *other), [Ok(())]);
    }
}

#[test]
fn a_write_through_write_that_ends_when_nothing_is_promised_any_more_fails() {
    let file = Recorder::default();
    let image = file.image();
    let mut channel = queue(&image, 8);
    submit(&mut *channel, Op::Write(extent(8, 1)), true);
    image.syncs.fail();
    assert_eq!(reap(&mut *channel), [Err(Errno::IO)]);
}

/// Its sync covers the new size, or the old one if it fails.
#[test]
fn a_new_size_is_set_before_its_sync_and_taken_back_if_that_fails() {
    let file = Recorder::default();
    let image = file.image();
    image.resize(SectorCount::new(4096)).unwrap();
    assert_eq!(std::mem::take(&mut *file.sizes.lock().unwrap()), [(4096 * 512, 0)]);
    file.bad_sync.store(true, Ordering::Relaxed);
    image.resize(SectorCount::new(8192)).unwrap_err();
    assert_eq!(*file.sizes.lock().unwrap(), [(8192 * 512, 1), (4096 * 512, 2)]);
}

/// It leads one sync, and leaves the next one to queues that wait for it.
#[test]
fn a_flush_that_comes_while_a_resize_syncs_finds_a_leader() {
    let file = Recorder::default();
    let image = file.image();
    let mut channel = queue(&image, 8);
    file.held.store(true, Ordering::Relaxed);
    std::thread::scope(|scope| {
        let operator = scope.spawn(|| image.resize(SectorCount::new(4096)));
        while file.taken.lock().unwrap().is_empty() {
            std::thread::yield_now();
        }
        submit(&mut *channel, Op::Flush, false);
        file.held.store(false, Ordering::Relaxed);
        operator.join().unwrap().unwrap();
    });
    assert_eq!(wait(&mut *channel, 1), [Ok(())]);
    assert_eq!(file.take(), [FileOp::Datasync; 2]);
}

/// The kernel returns EFAULT for guest memory that is gone: the disk refused every flush after the
/// guest's restart, though no sync had failed.
#[test]
fn a_durable_write_whose_memory_the_kernel_does_not_find_breaks_no_promise() {
    let file = Recorder::default();
    let image = file.image();
    let mut channel = queue(&image, 8);
    *file.bad_write.lock().unwrap() = Some((true, Errno::FAULT));
    submit(&mut *channel, Op::Write(extent(8, 1)), true);
    assert_eq!(reap(&mut *channel), [Err(Errno::FAULT)]);
    submit(&mut *channel, Op::Flush, false);
    assert_eq!(reap(&mut *channel), [Ok(())]);
}
