//! Contents of recordings.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use flowstone_block::{Class, Extent, Op, QueueDepth, Sector, SectorCount};

use super::*;
use crate::{Null, Recorded, Recording};

/// Requests in a chain, each of which depends on the completion of the one before.
const TURNS: u64 = 2000;
/// More than a ring holds.
const MANY: usize = 100_000;

fn record() -> Record {
    Record::new(Arc::new(Null::new(SectorCount::new(1 << 20))))
}

fn context(queue: u16) -> QueueContext {
    let origin = Origin::Queue { disk: 0, queue };
    QueueContext { origin, ..QueueContext::alone(QueueDepth(8)).unwrap() }
}

fn discard(sector: u64) -> Op {
    Op::Discard(Extent::new(Sector::new(sector), SectorCount::new(8)).unwrap())
}

/// Runs `ops`, each as a batch of its own.
fn run(channel: &mut dyn Channel, ops: impl IntoIterator<Item = Op>) {
    let mut done = Vec::new();
    for op in ops {
        channel.submit(Request::new(op, 0));
        channel.kick();
        channel.reap(&mut done);
    }
}

fn taken(recording: &mut Recording) -> (Vec<Recorded>, u64) {
    let (taken, lost) = recording.take();
    (taken.collect(), lost)
}

#[test]
fn what_is_submitted_during_a_recording_is_in_it_as_it_was() {
    let record = record();
    let mut channel = record.channel(&context(0)).unwrap();
    run(&mut *channel, [discard(0)]);
    let mut recording = record.recorder().begin().unwrap();
    let extent = Extent::new(Sector::new(16), SectorCount::new(1)).unwrap();
    let mut write = Request::new(Op::Write(extent), 0);
    (write.class, write.durable) = (Class::Journal, true);
    channel.submit(write);
    channel.submit(Request::new(Op::Flush, 0));
    channel.kick();
    run(&mut *channel, [discard(8)]);
    run(&mut *record.channel(&QueueContext::alone(QueueDepth(1)).unwrap()).unwrap(), [Op::Flush]);
    let (all, lost) = taken(&mut recording);
    let seen: Vec<_> = all.iter().map(|it| (it.op, it.class, it.durable)).collect();
    let plain = |op| (op, Class::Data, false);
    let wanted = [(Op::Write(extent), Class::Journal, true), plain(Op::Flush), plain(discard(8))];
    assert_eq!((&seen[..], lost), (&wanted[..], 0));
    assert!(all[0].at_ns == all[1].at_ns && all[1].at_ns <= all[2].at_ns);
    drop(recording);
    run(&mut *channel, [discard(16)]);
}

#[test]
fn what_finds_no_room_is_counted_and_what_comes_later_is_recorded_again() {
    let record = record();
    let mut channel = record.channel(&context(0)).unwrap();
    let mut recording = record.recorder().begin().unwrap();
    run(&mut *channel, (0..MANY).map(|_| Op::Flush));
    let (all, lost) = taken(&mut recording);
    assert!(lost > 0);
    assert_eq!(all.len() as u64 + lost, MANY as u64);
    run(&mut *channel, [discard(8)]);
    let (all, lost) = taken(&mut recording);
    assert_eq!((all.len(), lost), (1, 0));
}

/// One queue sees a request of another completed, and submits a request because of that.
#[test]
fn what_follows_from_a_request_comes_after_it() {
    let record = record();
    let mut recording = record.recorder().begin().unwrap();
    let last = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2_u64)
            .map(|queue| {
                let (record, last) = (&record, &last);
                scope.spawn(move || {
                    let mut channel = record.channel(&context(queue as u16)).unwrap();
                    while last.load(Ordering::Acquire) < TURNS {
                        let turn = last.load(Ordering::Acquire);
                        if turn % 2 == queue {
                            run(&mut *channel, [discard(turn)]);
                            last.store(turn + 1, Ordering::Release);
                        }
                        std::thread::yield_now();
                    }
                })
            })
            .collect();
        let (mut all, mut lost) = (Vec::new(), 0);
        let mut take = |all: &mut Vec<_>, lost: &mut u64| {
            let (taken, more) = recording.take();
            all.extend(taken);
            *lost += more;
        };
        while threads.iter().any(|thread| !thread.is_finished()) {
            take(&mut all, &mut lost);
        }
        take(&mut all, &mut lost);
        let order: Vec<_> = all.iter().map(|it| it.op.extent().unwrap().start().get()).collect();
        assert_eq!((order, lost), ((0..TURNS).collect(), 0));
        assert!(all.is_sorted_by_key(|it| it.at_ns));
    });
}

/// A thread may be preempted between reading the clock and writing to the ring.
#[test]
fn times_go_up_even_if_a_request_comes_late_and_one_that_is_to_come_waits() {
    let recorder = Arc::<Recorder>::default();
    let mut recording = recorder.begin().unwrap();
    let tape = Arc::clone(&recorder.tapes.get()[0]);
    let mut tracks = [(); 2].map(|()| Tape::join(&tape));
    let now = Instant::now();
    tracks.iter_mut().for_each(|track| track.begin_batch(now));
    tracks[0].record(&Request::new(discard(0), 0));
    let [first] = taken(&mut recording).0[..] else { panic!("one") };
    tracks[1].record(&Request::new(discard(8), 0));
    tracks[0].begin_batch(now + Duration::from_secs(3600));
    tracks[0].record(&Request::new(discard(16), 0));
    let [late] = taken(&mut recording).0[..] else { panic!("one is due") };
    assert!(late.op == discard(8) && late.at_ns > first.at_ns);
}

#[test]
fn a_recording_that_has_ended_leaves_nothing_and_others_go_on() {
    let record = record();
    let mut channel = record.channel(&context(0)).unwrap();
    let [first, mut second] = [(); 2].map(|()| record.recorder().begin().unwrap());
    run(&mut *channel, [discard(0)]);
    let tapes = record.recorder.tapes.get();
    let ended = Arc::downgrade(&tapes[0]);
    drop((first, tapes));
    // Before it sleeps: its waker may have been called too early.
    assert_eq!(channel.next_look(), NextLook::Now);
    channel.reap(&mut Vec::new());
    assert_eq!(ended.strong_count(), 0);
    run(&mut *channel, [discard(8)]);
    assert_eq!(taken(&mut second).0.len(), 2);
}

#[test]
fn a_queue_may_go_before_what_it_has_recorded_is_taken() {
    let record = record();
    let mut recording = record.recorder().begin().unwrap();
    for queue in [0, 0, 1] {
        run(&mut *record.channel(&context(queue)).unwrap(), [discard(0), Op::Flush]);
    }
    assert_eq!(taken(&mut recording).0.len(), 6);
    assert_eq!(recording.rings(), 0);
}

#[test]
fn a_disk_that_ends_waits_for_its_recordings_for_a_while_and_begins_no_more() {
    let recorder = Arc::<Recorder>::default();
    let recording = recorder.begin().unwrap();
    assert!(!recording.is_over());
    recorder.close();
    assert!(recording.is_over() && recorder.begin().is_none());
    recorder.wait(Instant::now());
    std::thread::scope(|scope| {
        scope.spawn(|| drop(recording));
        recorder.wait(Instant::now() + Duration::from_secs(3600));
    });
}
