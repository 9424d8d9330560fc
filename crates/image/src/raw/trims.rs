//! Discards of one queue, gathered into few calls to the host.
//!
//! What a discard costs the host is per call, not per byte, and file systems stop everybody's
//! direct I/O for it. So a queue has one call on its way at most, and what comes meanwhile waits;
//! when a round is over, the next one takes all that waits, in the order of the disk, with ranges
//! that touch or overlap made one. A lone discard starts at once. One that waits does so for the
//! rest of a round and the part of its own that comes before it.
//!
//! A discard completes when it is done, never earlier, so nothing about order changes: requests
//! that are in flight together have none, and a flush covers what has completed.

#![expect(clippy::vec_box, reason = "requests travel as boxes: a move is a pointer")]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use flowstone_block::{Extent, Outcome, Request};

use crate::discards::DiscardCounters;

/// Ranges that are carried out as one, and the requests that asked for them.
pub(crate) struct Run {
    pub extent: Extent,
    pub requests: Vec<Box<Request>>,
}

/// The discards of a queue.
#[derive(Default)]
pub(crate) struct Trims {
    waiting: Vec<Box<Request>>,
    /// What is left of the round, its first run last.
    round: Vec<Run>,
    under_way: Option<Run>,
    counters: Arc<DiscardCounters>,
}

impl Trims {
    pub fn new(counters: Arc<DiscardCounters>) -> Self {
        Self { waiting: Vec::new(), round: Vec::new(), under_way: None, counters }
    }

    pub fn add(&mut self, request: Box<Request>) {
        self.counters.ranges.fetch_add(1, Ordering::Relaxed);
        self.counters.bytes.fetch_add(request.op.bytes(), Ordering::Relaxed);
        self.counters.waiting.fetch_add(1, Ordering::Relaxed);
        self.waiting.push(request);
    }

    /// What is to be carried out now, if there is something and nothing is on its way. It is on
    /// its way from now on.
    pub fn start(&mut self) -> Option<Extent> {
        if self.under_way.is_some() {
            return None;
        }
        if self.round.is_empty() {
            self.round = plan(std::mem::take(&mut self.waiting));
            self.counters.merged.fetch_add(self.round.len() as u64, Ordering::Relaxed);
        }
        self.under_way = self.round.pop();
        self.under_way.as_ref().map(|run| run.extent)
    }

    /// The requests that are done with what was on its way. If several share a failure, none is:
    /// each is tried by itself, since one of them may be innocent.
    pub fn finish(&mut self, outcome: Outcome) -> Vec<Box<Request>> {
        let requests = self.under_way.take().map(|run| run.requests).unwrap_or_default();
        if outcome.is_err() && requests.len() > 1 {
            self.round.extend(requests.into_iter().rev().filter_map(alone));
            return Vec::new();
        }
        self.counters.waiting.fetch_sub(requests.len() as u64, Ordering::Relaxed);
        requests
    }
}

impl Drop for Trims {
    /// What never came back does not wait any more.
    fn drop(&mut self) {
        let runs = self.round.iter().chain(&self.under_way);
        let left = self.waiting.len() + runs.map(|run| run.requests.len()).sum::<usize>();
        self.counters.waiting.fetch_sub(left as u64, Ordering::Relaxed);
    }
}

fn alone(request: Box<Request>) -> Option<Run> {
    Some(Run { extent: request.op.extent()?, requests: vec![request] })
}

/// Runs for these requests, the first in the order of the disk last.
fn plan(mut requests: Vec<Box<Request>>) -> Vec<Run> {
    requests.sort_by_key(|request| request.op.extent().map(Extent::start));
    let mut runs: Vec<Run> = Vec::with_capacity(requests.len());
    for next in requests.into_iter().filter_map(alone) {
        match runs.last_mut().and_then(|run| run.extent.merge(next.extent).map(|it| (run, it))) {
            Some((run, extent)) => {
                run.extent = extent;
                run.requests.extend(next.requests);
            }
            None => runs.push(next),
        }
    }
    runs.reverse();
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use flowstone_block::{Errno, Op, Sector, SectorCount};
    use std::sync::atomic::AtomicU64;

    fn extent(start: u64, count: u64) -> Extent {
        Extent::new(Sector::new(start), SectorCount::new(count)).unwrap()
    }

    fn with(ranges: &[(u64, u64)]) -> Trims {
        let mut trims = Trims::default();
        add(&mut trims, ranges);
        trims
    }

    fn add(trims: &mut Trims, ranges: &[(u64, u64)]) {
        for (tag, (start, count)) in ranges.iter().enumerate() {
            trims.add(Request::new(Op::Discard(extent(*start, *count)), tag as u32));
        }
    }

    fn tags(requests: &[Box<Request>]) -> Vec<u32> {
        requests.iter().map(|request| request.tag).collect()
    }

    #[test]
    fn ranges_that_touch_become_one_and_others_go_in_the_order_of_the_disk() {
        let mut trims = with(&[(64, 8), (0, 8), (16, 8), (8, 4), (10, 6), (128, 1)]);
        for (run, served) in
            [(extent(0, 24), &[1, 3, 4, 2][..]), (extent(64, 8), &[0]), (extent(128, 1), &[5])]
        {
            assert_eq!(trims.start(), Some(run));
            assert_eq!(trims.start(), None, "two at once");
            assert_eq!(tags(&trims.finish(Ok(()))), served);
        }
        assert_eq!(trims.start(), None);
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        assert_eq!((count(&trims.counters.ranges), count(&trims.counters.merged)), (6, 3));
        assert_eq!(count(&trims.counters.waiting), 0);
    }

    #[test]
    fn latecomers_wait_for_the_next_round_however_early_on_the_disk() {
        let mut trims = with(&[(64, 8), (96, 8)]);
        assert_eq!(trims.start(), Some(extent(64, 8)));
        add(&mut trims, &[(0, 8), (8, 8)]);
        trims.finish(Ok(()));
        assert_eq!(trims.start(), Some(extent(96, 8)));
        trims.finish(Ok(()));
        assert_eq!(trims.start(), Some(extent(0, 16)));
        assert_eq!(tags(&trims.finish(Ok(()))), [0, 1]);
    }

    #[test]
    fn a_failure_is_that_of_the_range_that_failed() {
        let mut trims = with(&[(0, 8), (8, 8)]);
        assert_eq!(trims.start(), Some(extent(0, 16)));
        assert!(trims.finish(Err(Errno::IO)).is_empty());
        assert_eq!(trims.start(), Some(extent(0, 8)));
        assert_eq!(tags(&trims.finish(Ok(()))), [0]);
        assert_eq!(trims.start(), Some(extent(8, 8)));
        assert_eq!(tags(&trims.finish(Err(Errno::IO))), [1]);
    }

    #[test]
    fn a_queue_that_goes_away_leaves_nothing_waiting() {
        let counters = Arc::<DiscardCounters>::default();
        let mut trims = Trims::new(Arc::clone(&counters));
        add(&mut trims, &[(0, 8), (16, 8)]);
        trims.start();
        add(&mut trims, &[(32, 8)]);
        assert_eq!(counters.waiting.load(Ordering::Relaxed), 3);
        drop(trims);
        assert_eq!(counters.waiting.load(Ordering::Relaxed), 0);
    }
}
