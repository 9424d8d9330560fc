//! Waiting discards, in LBA order; those that touch or overlap are merged.

use std::collections::BTreeMap;
use std::time::Instant;

use flowstone_block::{Extent, Outcome};

use crate::runtime::completion_queue::HandedOver;
use crate::runtime::discards::Waiting;

/// A request, which is part of a run.
pub struct Job {
    pub extent: Extent,
    /// Counts the request as waiting. Dropped before the request: it must no longer count when the
    /// completion is seen.
    pub waiting: Option<Waiting>,
    pub request: HandedOver,
}

impl Job {
    pub fn reply(self, outcome: Outcome) {
        drop(self.waiting);
        self.request.reply(outcome);
    }
}

/// A range that is carried out in one call, and the requests for it.
pub struct DiscardRun {
    pub extent: Extent,
    pub jobs: Vec<Job>,
}

/// Runs that do not touch each other, keyed by start.
#[derive(Default)]
pub struct Pending {
    runs: BTreeMap<u64, DiscardRun>,
    /// End of the last run taken: the next run is the first beyond it, or the first of all. So a
    /// discard waits for at most one sweep over the disk.
    swept_to: u64,
    sweep_began: Option<Instant>,
}

impl Pending {
    /// Adds a run, and merges it with the runs it touches.
    pub fn add(&mut self, mut run: DiscardRun) {
        if self.runs.is_empty() {
            self.sweep_began = None;
        }
        while let Some((&start, before)) = self.runs.range(..=run.extent.end().get()).next_back()
            && let Some(extent) = before.extent.merge(run.extent)
        {
            let mut before = self.runs.remove(&start).expect("just seen");
            before.jobs.append(&mut run.jobs);
            run = DiscardRun { extent, jobs: before.jobs };
        }
        self.runs.insert(run.extent.start().get(), run);
    }

    /// Takes the next run to carry out.
    pub fn take(&mut self, now: Instant) -> Option<DiscardRun> {
        let next = self.runs.range(self.swept_to..).next().map(|(start, _)| *start);
        self.sweep_began.get_or_insert(now);
        let run = match next {
            Some(start) => self.runs.remove(&start)?,
            None => {
                self.sweep_began = Some(now);
                self.runs.pop_first()?.1
            }
        };
        self.swept_to = run.extent.end().get();
        Some(run)
    }

    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Returns when the present sweep began, if discards wait.
    pub fn sweep_began(&self) -> Option<Instant> {
        self.sweep_began.filter(|_| !self.runs.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use flowstone_block::{Op, Reactor, Request, Sector, SectorCount};

    use super::*;
    use crate::runtime::completion_queue::CompletionQueue;
    use crate::runtime::wakers::QueueWaker;

    fn extent(start: u64, count: u64) -> Extent {
        Extent::new(Sector::new(start), SectorCount::new(count)).unwrap()
    }

    fn add(pending: &mut Pending, ranges: &[(u64, u64)]) {
        let waker = QueueWaker::new(&Reactor::new().unwrap());
        let completions = Arc::new(CompletionQueue::new(waker));
        for (tag, (start, count)) in ranges.iter().enumerate() {
            let extent = extent(*start, *count);
            let request = Request::new(Op::Discard(extent), tag as u32);
            let request = HandedOver::new(request, &completions);
            let jobs = vec![Job { extent, waiting: None, request }];
            pending.add(DiscardRun { extent, jobs });
        }
    }

    fn take(pending: &mut Pending) -> Option<(Extent, Vec<u32>)> {
        let run = pending.take(Instant::now())?;
        let mut jobs = run.jobs;
        let mut tags: Vec<u32> = jobs.iter_mut().map(|job| job.request.request().tag).collect();
        tags.sort_unstable();
        Some((run.extent, tags))
    }

    #[test]
    fn ranges_that_touch_become_one_and_go_in_the_order_of_the_disk() {
        let mut pending = Pending::default();
        add(&mut pending, &[(64, 8), (0, 8), (16, 8), (8, 4), (10, 6), (128, 1)]);
        assert_eq!(take(&mut pending), Some((extent(0, 24), vec![1, 2, 3, 4])));
        assert_eq!(take(&mut pending), Some((extent(64, 8), vec![0])));
        assert_eq!(take(&mut pending), Some((extent(128, 1), vec![5])));
        assert_eq!(take(&mut pending), None);
        assert_eq!(pending.sweep_began(), None);
    }

    /// The first sweep had no beginning, and the next one had that of the last sweep before a
    /// pause.
    #[test]
    fn a_sweep_begins_with_the_first_run_that_is_taken() {
        let mut pending = Pending::default();
        add(&mut pending, &[(0, 4), (8, 4), (16, 4)]);
        assert_eq!(pending.sweep_began(), None);
        take(&mut pending);
        let first = pending.sweep_began().expect("two are left");
        take(&mut pending);
        assert_eq!(pending.sweep_began(), Some(first));
        take(&mut pending);
        add(&mut pending, &[(32, 4), (40, 4)]);
        assert_eq!(pending.sweep_began(), None);
        take(&mut pending);
        assert!(pending.sweep_began().expect("one is left") > first);
    }

    #[test]
    fn a_range_over_several_others_swallows_them() {
        let mut pending = Pending::default();
        add(&mut pending, &[(0, 4), (8, 4), (16, 4), (40, 4), (2, 30)]);
        assert_eq!(take(&mut pending), Some((extent(0, 32), vec![0, 1, 2, 4])));
        assert_eq!(take(&mut pending), Some((extent(40, 4), vec![3])));
    }

    #[test]
    fn latecomers_join_the_sweep_or_wait_for_the_next() {
        let mut pending = Pending::default();
        add(&mut pending, &[(64, 8), (96, 8)]);
        assert_eq!(take(&mut pending).unwrap().0, extent(64, 8));
        add(&mut pending, &[(0, 8), (8, 8), (104, 8)]);
        assert_eq!(take(&mut pending).unwrap().0, extent(96, 16));
        assert_eq!(take(&mut pending).unwrap().0, extent(0, 16));
        assert_eq!(take(&mut pending), None);
    }
}
