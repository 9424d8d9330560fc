//! A client thread: drives its lanes through the phases of a run.
//!
//! It either looks at its rings all the time or sleeps until one of them calls, and it never does
//! anything a guest's driver could not do.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::time::{ClockId, clock_gettime};

use super::lane::Lane;
use super::options::Completion;
use super::shared::{Phase, Shared};
use super::stats::Stats;
use crate::Result;
use crate::client::{Event, wait_readable};
use crate::process::pin_current_thread;

/// Longest sleep before the phase is looked at again.
const NAP: Duration = Duration::from_millis(50);
/// Calls are refused anew after so many answers; see `DriverQueue::disarm_calls`.
const DISARM_EVERY: u64 = 8192;

/// A thread's work.
pub(super) struct Worker<'a> {
    pub(super) id: usize,
    pub(super) lanes: Vec<Lane>,
    pub(super) shared: &'a Shared,
    pub(super) completion: Completion,
    pub(super) cpu: Option<usize>,
}

/// What a thread brings back.
pub(super) struct Harvest {
    pub(super) lanes: Vec<Lane>,
    pub(super) stats: Stats,
    /// Measured time.
    pub(super) elapsed: Duration,
    /// CPU time of the thread while measuring.
    pub(super) cpu: Duration,
}

/// The part of a worker that changes all the time.
struct Shift {
    stats: Stats,
    /// What came back after the end.
    late: Stats,
    clock: Instant,
    answers: u64,
    disarmed_at: u64,
    /// When answers were found last.
    answered_ns: u64,
    started: (Instant, Duration),
    ended: Option<(Instant, Duration)>,
}

impl Worker<'_> {
    /// Works until the run is over. A failure aborts the other workers, too.
    pub(super) fn run(self) -> Result<Harvest> {
        let shared = self.shared;
        let harvest = self.work();
        if harvest.is_err() {
            shared.enter(Phase::Abort);
        }
        harvest
    }

    fn work(mut self) -> Result<Harvest> {
        if let Some(cpu) = self.cpu {
            pin_current_thread(&[cpu])?;
        }
        let calls = self
            .lanes
            .iter()
            .map(|lane| lane.ring.share().call.try_clone())
            .collect::<Result<Vec<Event>>>()?;
        let mut fds: Vec<_> = calls.iter().map(|call| PollFd::new(call, PollFlags::IN)).collect();
        let mut shift = Shift::new();
        let mut phase = self.shared.phase();
        self.begin(&mut shift)?;
        while self.in_flight() {
            let next = self.shared.phase();
            if next != phase {
                phase = next;
                self.change_phase(phase, &mut shift);
            }
            if phase == Phase::Abort {
                break;
            }
            if !self.turn(&mut shift)? {
                self.rest(&mut fds, &mut shift)?;
            }
        }
        shift.end(&self.lanes);
        Ok(shift.harvest(self.lanes))
    }

    /// Refuses calls and sends the first requests.
    fn begin(&mut self, shift: &mut Shift) -> Result<()> {
        shift.answered_ns = shift.now_ns();
        for lane in &mut self.lanes {
            lane.ring.queue.disarm_calls();
            lane.refill(shift.now_ns());
            shift.stats.kicks += u64::from(lane.ring.notify()?);
        }
        Ok(())
    }

    fn change_phase(&mut self, phase: Phase, shift: &mut Shift) {
        match phase {
            Phase::Ramp | Phase::Abort => {}
            Phase::Measure => shift.restart(&self.lanes),
            Phase::Drain => {
                shift.end(&self.lanes);
                self.lanes.iter_mut().for_each(Lane::stop);
            }
        }
    }

    /// Looks at every ring once. False when there was nothing to do.
    fn turn(&mut self, shift: &mut Shift) -> Result<bool> {
        let mut found = false;
        for lane in &mut self.lanes {
            if lane.ring.queue.has_used() {
                found = true;
                shift.serve(lane)?;
            }
        }
        if found {
            self.shared.report(self.id, shift.answers);
        }
        Ok(found)
    }

    /// Nothing to do: look again, or sleep until called.
    fn rest(&mut self, fds: &mut [PollFd<'_>], shift: &mut Shift) -> Result<()> {
        match self.completion {
            Completion::Poll => {
                self.refuse_calls(shift);
                std::hint::spin_loop();
                Ok(())
            }
            Completion::Eventfd => self.sleep(fds, shift),
        }
    }

    fn sleep(&mut self, fds: &mut [PollFd<'_>], shift: &mut Shift) -> Result<()> {
        for lane in &mut self.lanes {
            lane.ring.queue.arm_calls();
        }
        if self.lanes.iter().any(|lane| lane.ring.queue.has_used()) {
            return Ok(());
        }
        shift.stats.sleeps += 1;
        wait_readable(fds, NAP)?;
        for lane in &mut self.lanes {
            shift.stats.calls += lane.ring.take_calls();
            // With EVENT_IDX the event just passed stays silent by itself.
            if !lane.ring.queue.options().event_idx {
                lane.ring.queue.disarm_calls();
            }
        }
        Ok(())
    }

    fn refuse_calls(&mut self, shift: &mut Shift) {
        if shift.answers - shift.disarmed_at >= DISARM_EVERY {
            shift.disarmed_at = shift.answers;
            self.lanes.iter_mut().for_each(|lane| lane.ring.queue.disarm_calls());
        }
    }

    fn in_flight(&self) -> bool {
        self.lanes.iter().any(|lane| lane.ring.queue.in_flight() > 0)
    }
}

impl Shift {
    fn new() -> Self {
        Shift {
            stats: Stats::new(),
            late: Stats::new(),
            clock: Instant::now(),
            answers: 0,
            disarmed_at: 0,
            answered_ns: 0,
            started: (Instant::now(), thread_cpu()),
            ended: None,
        }
    }

    #[inline]
    fn now_ns(&self) -> u64 {
        self.clock.elapsed().as_nanos() as u64
    }

    /// Takes a lane's answers, sends new requests, kicks if wanted. One look at the clock for all.
    #[inline]
    fn serve(&mut self, lane: &mut Lane) -> Result<()> {
        let now_ns = self.now_ns();
        // What comes back after the end was not done in the time that is measured.
        let stats = if self.ended.is_some() { &mut self.late } else { &mut self.stats };
        self.answers += lane.reap(now_ns, stats)?;
        let gap_ns = now_ns - self.answered_ns;
        self.stats.longest_gap_ns = self.stats.longest_gap_ns.max(gap_ns);
        self.answered_ns = now_ns;
        lane.refill(now_ns);
        let kicked = lane.ring.notify()?;
        self.stats.kicks += u64::from(kicked);
        self.stats.batches += 1;
        Ok(())
    }

    /// Measuring starts: forget the ramp.
    fn restart(&mut self, lanes: &[Lane]) {
        for lane in lanes {
            lane.ring.take_calls();
        }
        self.stats.clear();
        self.answered_ns = self.now_ns();
        self.started = (Instant::now(), thread_cpu());
    }

    /// Measuring ends; only the first end counts.
    fn end(&mut self, lanes: &[Lane]) {
        if self.ended.is_none() {
            self.stats.calls += lanes.iter().map(|lane| lane.ring.take_calls()).sum::<u64>();
            self.ended = Some((Instant::now(), thread_cpu()));
        }
    }

    fn harvest(mut self, lanes: Vec<Lane>) -> Harvest {
        self.stats.errors += self.late.errors;
        self.stats.first_error = self.stats.first_error.or(self.late.first_error);
        let (end, cpu_end) = self.ended.unwrap_or(self.started);
        let elapsed = end.duration_since(self.started.0);
        Harvest { lanes, stats: self.stats, elapsed, cpu: cpu_end.saturating_sub(self.started.1) }
    }
}

fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
