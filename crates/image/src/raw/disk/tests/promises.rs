//! What a queue refuses, leaves out, and counts.

use std::time::{Duration, Instant};

use super::*;
use crate::runtime::pace::Pace;

/// The file would say yes to the next sync. What it has lost stays lost, so nothing that promises
/// durability gets as far as the file.
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
    // A read promises nothing, on a disk that writes through, too.
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

/// The thread that discards makes way for guests at work. Its own work is none of theirs.
#[test]
fn all_requests_but_discards_count_as_work_of_the_guest() {
    let image = Recorder::default().image();
    let mut channel = queue(&image, 8);
    let mut pace = Pace::default();
    let mut rests = || {
        let began = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
        pace.rest_after(began, &image.activity) > Duration::ZERO
    };
    submit(&mut *channel, Op::Discard(extent(8, 1)), false);
    wait(&mut *channel, 1);
    assert!(!rests());
    submit(&mut *channel, Op::Write(extent(8, 1)), false);
    wait(&mut *channel, 1);
    assert!(rests());
}
