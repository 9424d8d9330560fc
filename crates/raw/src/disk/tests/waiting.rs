//! Tests of queues that wait for each other: which ones are woken, and which must not wait.

use std::sync::atomic::AtomicU64;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::{Duration, Instant};

use flowstone_image::Wait;

use super::*;

/// A file whose requests each take this long.
#[derive(Clone, Copy)]
struct Slow(Duration);

struct SlowChannel(Duration, Vec<(Instant, usize)>);

impl FileIo for Slow {
    fn size(&self) -> io::Result<u64> {
        Ok(1 << 20)
    }

    fn set_size(&self, _bytes: u64) -> io::Result<()> {
        Ok(())
    }

    fn allocated_bytes(&self) -> io::Result<u64> {
        Ok(0)
    }

    fn next_data(&self, _from: FileOffset) -> io::Result<Option<Range<FileOffset>>> {
        Ok(None)
    }

    fn block_bytes(&self) -> u32 {
        512
    }

    fn describe(&self) -> String {
        "a slow test".into()
    }

    fn channel(&self, _context: &QueueContext) -> io::Result<Box<dyn FileChannel>> {
        Ok(Box::new(SlowChannel(self.0, Vec::new())))
    }
}

impl FileChannel for SlowChannel {
    fn submit(&mut self, request: FileRequest) {
        self.1.push((Instant::now() + self.0, request.tag));
    }

    fn kick(&mut self) {}

    fn reap(&mut self, done: &mut Vec<FileCompletion>) {
        let now = Instant::now();
        let due = self.1.extract_if(.., |(due, _)| *due <= now);
        done.extend(due.map(|(_, tag)| FileCompletion::new(tag, Ok(()))));
    }

    fn next_look(&mut self) -> NextLook {
        self.1.iter().map(|(due, _)| NextLook::At(*due)).min().unwrap_or(NextLook::OnWake)
    }
}

fn slow_image(time: Duration) -> RawImage {
    let file = Box::new(Slow(time));
    RawImage::open(Path::new("t.raw"), file, DiscardMode::Deallocate, Access::Write).unwrap()
}

/// Two programs that flushed over and over blocked the drop of a leading queue, and with it
/// SIGTERM.
#[test]
fn a_queue_that_goes_away_does_not_lead_for_ever() {
    const PATIENCE: Duration = flowstone_testkit::HANG;
    let image = slow_image(Duration::from_millis(5));
    let (stop, flushes, begun) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let mut leader = queue(&image, 8);
    submit(&mut *leader, Op::Flush, false);
    let took = thread::scope(|scope| {
        let (image, stop, flushes, begun) = (&image, &stop, &flushes, &begun);
        scope.spawn(move || {
            // A guest with two programs that call fsync over and over.
            let context = QueueContext::alone(QueueDepth(8)).unwrap();
            let mut other = image.channel(&context).unwrap();
            let mut done = Vec::new();
            let start = Instant::now();
            submit(&mut *other, Op::Flush, false);
            begun.store(1, Ordering::Release);
            while begun.load(Ordering::Acquire) < 2 {
                thread::yield_now();
            }
            submit(&mut *other, Op::Flush, false);
            begun.store(3, Ordering::Release);
            let mut in_flight = 2;
            while in_flight > 0 {
                other.reap(&mut done);
                for _ in done.drain(..) {
                    in_flight -= 1;
                    flushes.fetch_add(1, Ordering::Relaxed);
                    if !stop.load(Ordering::Relaxed) && start.elapsed() < PATIENCE {
                        submit(&mut *other, Op::Flush, false);
                        in_flight += 1;
                    }
                }
                if in_flight > 0 {
                    context.reactor.sleep(|| other.next_look());
                }
            }
        });
        while begun.load(Ordering::Acquire) < 1 {
            thread::yield_now();
        }
        // Its own flush completes, so its queue has nothing in flight and is dropped.
        let mut done = Vec::new();
        while done.is_empty() {
            leader.reap(&mut done);
        }
        begun.store(2, Ordering::Release);
        while begun.load(Ordering::Acquire) < 3 {
            thread::yield_now();
        }
        let start = Instant::now();
        drop(leader);
        let took = start.elapsed();
        stop.store(true, Ordering::Relaxed);
        took
    });
    let flushes = flushes.load(Ordering::Relaxed);
    eprintln!("T1: {took:?} {flushes}");
    assert!(took < PATIENCE / 3, "it took {took:?}, and led for {flushes} flushes of others");
}

/// Each sync woke every queue of the image.
#[test]
fn an_idle_queue_sleeps_while_another_one_flushes() {
    const FLUSHES: u64 = 200;
    let file = Recorder::default();
    let image = file.image();
    let (sleeps, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let (image, sleeps, stop) = (&image, &sleeps, &stop);
        let (tell, told) = sync_channel(1);
        scope.spawn(move || {
            let context = QueueContext::alone(QueueDepth(8)).unwrap();
            let mut idle = image.channel(&context).unwrap();
            tell.send(context.reactor.waker()).unwrap();
            let mut done = Vec::new();
            while !stop.load(Ordering::Acquire) {
                idle.reap(&mut done);
                assert!(done.is_empty());
                context.reactor.sleep(|| match stop.load(Ordering::Acquire) {
                    true => NextLook::Now,
                    false => idle.next_look(),
                });
                sleeps.fetch_add(1, Ordering::Relaxed);
            }
        });
        let waker = told.recv().unwrap();
        let mut busy = BlockingDisk::new(image).unwrap();
        for _ in 0..FLUSHES {
            // A flush takes a while, as on a real disk.
            thread::sleep(Duration::from_micros(300));
            busy.run(Op::Flush).unwrap();
        }
        stop.store(true, Ordering::Release);
        waker.wake();
    });
    let sleeps = sleeps.load(Ordering::Relaxed);
    assert!(sleeps < FLUSHES / 10, "it was woken {sleeps} times by {FLUSHES} flushes of another");
}

#[test]
fn a_flush_that_another_queue_serves_ends_the_sleep_of_its_thread() {
    const LONG: Duration = flowstone_testkit::HANG;
    let image = Recorder::default().image();
    let contexts = [(); 2].map(|()| QueueContext::alone(QueueDepth(8)).unwrap());
    let mut leader = image.channel(&contexts[0]).unwrap();
    let mut other = image.channel(&contexts[1]).unwrap();
    submit(&mut *leader, Op::Flush, false);
    submit(&mut *other, Op::Flush, false);
    assert_eq!(other.next_look(), NextLook::OnWake);
    let start = Instant::now();
    // After the other queue's thread has looked for the last time, and before it sleeps.
    contexts[1].reactor.sleep(|| {
        assert_eq!(reap(&mut *leader).len(), 1);
        NextLook::At(start + LONG)
    });
    assert!(start.elapsed() < LONG, "nobody woke it");
    assert_eq!(other.next_look(), NextLook::Now);
    assert_eq!(reap(&mut *other), [Ok(())]);
}

#[test]
fn a_discard_that_is_done_is_looked_at_before_a_sleep() {
    let image = Recorder::default().image();
    let mut channel = queue(&image, 8);
    submit(&mut *channel, Op::Discard(extent(0, 8)), false);
    // It counts as waiting until just before it completes.
    flowstone_testkit::wait_until("it is done", || image.discards().waiting == 0);
    flowstone_testkit::wait_until("it is given back", || channel.next_look() == NextLook::Now);
    assert_eq!(reap(&mut *channel), [Ok(())]);
}

#[test]
fn a_queue_tells_what_its_requests_wait_for() {
    let file = Recorder::default();
    let image = file.image();
    let context = QueueContext::alone(QueueDepth(8)).unwrap();
    let [mut one, mut other] = [(); 2].map(|()| image.queue(&context).unwrap());
    file.held.store(true, Ordering::Relaxed);
    submit(&mut one, Op::Write(extent(0, 8)), false);
    submit(&mut one, Op::Discard(extent(8, 8)), false);
    submit(&mut other, Op::Flush, false);
    assert_eq!(Vec::from_iter(one.waits()), [Wait::Host, Wait::Discard]);
    assert_eq!(Vec::from_iter(other.waits()), [Wait::Sync]);
    file.held.store(false, Ordering::Relaxed);
    wait(&mut one, 2);
    wait(&mut other, 1);
    assert!(one.waits().is_empty() && other.waits().is_empty());
}
