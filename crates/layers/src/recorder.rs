//! Recordings of a disk: what its queues put down, and who reads that.
//!
//! ```text
//!  queue ── Track ──► ring ──┐
//!                            ├──► Recording: in the order of time
//!  queue ── Track ──► ring ──┘
//! ```
//! Each recording has a ring for each queue. A queue never waits: what finds no room in a ring
//! is counted. What follows from the completion of a request has a later time than that, and comes
//! after it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use flowstone_block::{Class, Op, Published, Request, mutant};
use rtrb::{Consumer, Producer, RingBuffer};

/// Requests that a ring holds, of 40 bytes each: a tenth of a second of a fast queue. So long may
/// the reader have to wait for a CPU.
const TRACK_REQUESTS: usize = 64 << 10;

/// One request. No byte of what is read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// When it came, in nanoseconds since the recording began.
    pub at_ns: u64,
    /// What is to be done.
    pub op: Op,
    /// What kind of data it is.
    pub class: Class,
    /// Whether it has to be durable before it completes.
    pub durable: bool,
}

/// Begins recordings of one disk.
#[derive(Default)]
pub struct Recorder {
    pub(crate) tapes: Published<Vec<Arc<Tape>>>,
    /// Held while that changes.
    is_closed: Mutex<bool>,
    /// Rings when one has ended.
    ended: Condvar,
}

/// What a recording and the queues share.
pub struct Tape {
    start: Instant,
    /// Ends of rings that the recording has not got yet.
    joined: Mutex<Vec<TrackEnd>>,
}

/// A queue's end of a ring.
pub struct Track {
    tape: Arc<Tape>,
    requests: Producer<Recorded>,
    lost: Arc<AtomicU64>,
    /// Of the batch that is being submitted.
    at_ns: u64,
}

/// The other end.
struct TrackEnd {
    requests: Consumer<Recorded>,
    lost: Arc<AtomicU64>,
    /// Of these, those that have been told.
    told: u64,
}

/// A recording. It ends when it is dropped.
pub struct Recording {
    recorder: Arc<Recorder>,
    tape: Arc<Tape>,
    tracks: Vec<TrackEnd>,
    /// Requests that an older one may still follow.
    held: Vec<Recorded>,
    /// What is older than this has been given.
    given_ns: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Recorder {
    /// Records what queues submit from now on; several recordings know nothing of each other. None
    /// after [`close`](Self::close).
    pub fn begin(self: &Arc<Self>) -> Option<Recording> {
        let tape = Arc::new(Tape { start: Instant::now(), joined: Mutex::default() });
        let is_closed = lock(&self.is_closed);
        if *is_closed {
            return None;
        }
        let mut tapes = Vec::clone(&self.tapes.get());
        tapes.push(Arc::clone(&tape));
        self.tapes.publish(tapes);
        let recorder = Arc::clone(self);
        Some(Recording { recorder, tape, tracks: Vec::new(), held: Vec::new(), given_ns: 0 })
    }

    fn end(&self, ended: &Arc<Tape>) {
        let _alone = lock(&self.is_closed);
        let mut tapes = Vec::clone(&self.tapes.get());
        tapes.retain(|tape| !Arc::ptr_eq(tape, ended));
        self.tapes.publish(tapes);
        self.ended.notify_all();
    }

    /// The disk has ended: tells recordings. Does not wait.
    pub fn close(&self) {
        *lock(&self.is_closed) = true;
    }

    /// After [`close`](Self::close): waits for recordings to end, until `deadline` at most.
    pub fn wait(&self, deadline: Instant) {
        let mut is_closed = lock(&self.is_closed);
        while !self.tapes.get().is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let woken = self.ended.wait_timeout(is_closed, left);
            is_closed = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Tape {
    /// Makes a ring for one more queue.
    pub fn join(tape: &Arc<Self>) -> Track {
        let (requests, theirs) = RingBuffer::new(TRACK_REQUESTS);
        let lost = Arc::<AtomicU64>::default();
        let end = TrackEnd { requests: theirs, lost: Arc::clone(&lost), told: 0 };
        lock(&tape.joined).push(end);
        Track { tape: Arc::clone(tape), requests, lost, at_ns: 0 }
    }
}

impl Track {
    pub fn is_of(&self, tape: &Arc<Tape>) -> bool {
        Arc::ptr_eq(&self.tape, tape)
    }

    pub fn begin_batch(&mut self, now: Instant) {
        self.at_ns = nanos(now.saturating_duration_since(self.tape.start));
    }

    pub fn record(&mut self, request: &Request) {
        let Request { op, class, durable, .. } = *request;
        let recorded = Recorded { at_ns: self.at_ns, op, class, durable };
        let is_lost = self.requests.push(recorded).is_err();
        if is_lost && !mutant("layers.record.counts-no-loss") {
            // No other thread adds to it.
            let lost = self.lost.load(Ordering::Relaxed);
            self.lost.store(lost + 1, Ordering::Relaxed);
        }
    }
}

impl TrackEnd {
    /// Moves what there is to `into`. Returns how many more have been lost.
    fn empty(&mut self, into: &mut Vec<Recorded>) -> u64 {
        if let Ok(all) = self.requests.read_chunk(self.requests.slots()) {
            into.extend(all);
        }
        let lost = self.lost.load(Ordering::Relaxed);
        lost - std::mem::replace(&mut self.told, lost)
    }
}

impl Recording {
    /// Returns whether the disk has ended. What [`take`](Self::take) gives then is the rest.
    pub fn is_over(&self) -> bool {
        *lock(&self.recorder.is_closed)
    }

    /// What has been recorded since the last time, in the order of time, and how many requests have
    /// been lost since.
    pub fn take(&mut self) -> (impl Iterator<Item = Recorded>, u64) {
        // Before any ring is looked at. A request that is there may follow from one that comes to a
        // ring after the look at that; then its time is later than this.
        let now_ns = nanos(self.tape.start.elapsed());
        self.tracks.append(&mut lock(&self.tape.joined));
        let mut lost = 0;
        self.tracks.retain_mut(|track| {
            let is_abandoned = track.requests.is_abandoned();
            lost += track.empty(&mut self.held);
            !is_abandoned
        });
        self.held.sort_by_key(|recorded| recorded.at_ns);
        let is_due = |it: &Recorded| {
            it.at_ns < now_ns || mutant("layers.record.does-not-wait-for-what-comes-before")
        };
        let due = self.held.partition_point(is_due);
        // A thread may have been stopped between its look at the clock and the ring. It has
        // submitted nothing meanwhile.
        let given_ns = std::mem::replace(&mut self.given_ns, now_ns);
        let in_order = move |it: Recorded| Recorded { at_ns: it.at_ns.max(given_ns), ..it };
        (self.held.drain(..due).map(in_order), lost)
    }
}

#[cfg(test)]
impl Recording {
    /// Of queues that are there.
    pub fn rings(&self) -> usize {
        self.tracks.len()
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.recorder.end(&self.tape);
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
