//! Recordings of a disk: the queues' tracks, and the client's end.
//!
//! ```text
//!  queue ── Track ──► ring ──┐
//!                            ├──► Recording: in the order of time
//!  queue ── Track ──► ring ──┘
//! ```
//! Each recording has one ring per queue. A queue never waits: requests that do not fit in a ring
//! are counted as lost. A request made in response to a completion has a later time than the
//! completed one, and comes after it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use flowstone_block::{Class, Op, Published, Request, lock, mutated};
use rtrb::{Consumer, Producer, RingBuffer};

/// Requests that a ring holds, of 40 bytes each: those of a fast queue in 100 ms, for which the
/// reader may have to wait for a CPU.
const TRACK_REQUESTS: usize = 64 << 10;

/// One request, without its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// Its arrival, in nanoseconds since the recording began.
    pub at_ns: u64,
    /// Its operation.
    pub op: Op,
    /// The class of its data.
    pub class: Class,
    /// It has to be durable before it completes.
    pub durable: bool,
}

/// The recorder of one disk, which begins recordings.
#[derive(Default)]
pub struct Recorder {
    pub(crate) tapes: Published<Vec<Arc<Tape>>>,
    /// Locked while `tapes` changes; set when the disk is closed.
    is_closed: Mutex<bool>,
    /// Signalled when a recording has ended.
    ended: Condvar,
}

/// The state shared by a recording and the queues.
pub struct Tape {
    start: Instant,
    /// Reading ends of new rings, which the recording has not taken yet.
    joined: Mutex<Vec<TrackEnd>>,
}

/// A queue's end of a ring.
pub struct Track {
    tape: Arc<Tape>,
    requests: Producer<Recorded>,
    lost: Arc<AtomicU64>,
    /// Timestamp of the current batch.
    at_ns: u64,
}

/// The recording's end of a ring.
struct TrackEnd {
    requests: Consumer<Recorded>,
    lost: Arc<AtomicU64>,
    /// The part of `lost` already reported.
    told: u64,
}

/// A recording. It ends when it is dropped.
pub struct Recording {
    recorder: Arc<Recorder>,
    tape: Arc<Tape>,
    tracks: Vec<TrackEnd>,
    /// Requests that are held back because an older one may still arrive.
    held: Vec<Recorded>,
    /// Requests older than this have been returned.
    given_ns: u64,
}

impl Recorder {
    /// Starts recording the requests that queues submit from now on; recordings are independent of
    /// each other. `None` after [`close`](Self::close).
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

    /// Returns whether the disk is closed.
    pub fn is_closed(&self) -> bool {
        *lock(&self.is_closed)
    }

    /// Marks the disk as closed, which recordings can see. Does not wait.
    pub fn close(&self) {
        *lock(&self.is_closed) = true;
    }

    /// Waits until all recordings have ended, up to `deadline`; to be called after
    /// [`close`](Self::close).
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
        let is_lost = mutated("layers.record.counts-no-loss", is_lost, false);
        if is_lost {
            // No other thread adds to it.
            let lost = self.lost.load(Ordering::Relaxed);
            self.lost.store(lost + 1, Ordering::Relaxed);
        }
    }
}

impl TrackEnd {
    /// Moves all its requests to `into`. Returns how many more have been lost.
    fn empty(&mut self, into: &mut Vec<Recorded>) -> u64 {
        if let Ok(all) = self.requests.read_chunk(self.requests.slots()) {
            into.extend(all);
        }
        let lost = self.lost.load(Ordering::Relaxed);
        lost - std::mem::replace(&mut self.told, lost)
    }
}

impl Recording {
    /// Returns whether the disk is closed; the next [`take`](Self::take) then returns the rest.
    pub fn is_over(&self) -> bool {
        self.recorder.is_closed()
    }

    /// Returns the requests recorded since the last call in order of time, and the number of
    /// requests lost since.
    pub fn take(&mut self) -> (impl Iterator<Item = Recorded>, u64) {
        // Read before any ring. A request found in a ring may cause one that arrives in a ring
        // already emptied; that one's time is later than this.
        let now_ns = nanos(self.tape.start.elapsed());
        self.tracks.append(&mut lock(&self.tape.joined));
        let mut lost = 0;
        self.tracks.retain_mut(|track| {
            let is_abandoned = track.requests.is_abandoned();
            lost += track.empty(&mut self.held);
            !is_abandoned
        });
        self.held.sort_by_key(|recorded| recorded.at_ns);
        let end_ns = mutated("layers.record.does-not-wait-for-what-comes-before", now_ns, u64::MAX);
        let is_due = |it: &Recorded| it.at_ns < end_ns;
        let due = self.held.partition_point(is_due);
        // A thread may have been preempted between reading the clock and writing to the ring. It
        // has submitted nothing meanwhile.
        let given_ns = std::mem::replace(&mut self.given_ns, now_ns);
        let in_order = move |it: Recorded| Recorded { at_ns: it.at_ns.max(given_ns), ..it };
        (self.held.drain(..due).map(in_order), lost)
    }
}

#[cfg(test)]
impl Recording {
    /// Returns the number of attached queues.
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
