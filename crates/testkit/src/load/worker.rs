//! A client thread: drives its lanes through the phases of a run.
//!
//! It either polls its rings or sleeps until one of them calls, and it does nothing that a guest's
//! driver could not do.

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::thread::set_current_timer_slack;

use super::lane::Lane;
use super::options::Completion;
use super::shared::{Phase, Shared};
use super::stats::Stats;
use crate::client::{Event, wait_readable};
use crate::process::pin_current_thread;
use crate::{Error, Result};

/// Longest sleep before the phase is checked again.
const NAP: Duration = Duration::from_millis(50);
/// Number of completions after which calls are disabled again; see `DriverQueue::disarm_calls`.
const DISARM_EVERY: u64 = 8192;

/// A client thread.
pub(super) struct Worker<'a> {
    pub(super) id: usize,
    pub(super) lanes: Vec<Lane>,
    /// Number of disks of all workers' lanes.
    pub(super) disks: usize,
    pub(super) shared: &'a Shared,
    pub(super) completion: Completion,
    pub(super) cpu: Option<usize>,
}

/// The results of a thread.
pub(super) struct Harvest {
    pub(super) lanes: Vec<Lane>,
    /// By account of the lanes.
    pub(super) stats: Vec<Stats>,
    /// Measured time.
    pub(super) elapsed: Duration,
}

/// The mutable state of a worker.
struct Shift {
    /// By account of the lanes.
    stats: Vec<Stats>,
    /// Requests completed after the end of measurement.
    late: Vec<Stats>,
    clock: Instant,
    answers: u64,
    disarmed_at: u64,
    /// The time of the last completions.
    answered_ns: u64,
    started: Instant,
    ended: Option<Instant>,
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
        // Paced requests are to be sent when they are due, without timer slack.
        set_current_timer_slack(NonZeroU64::new(1)).map_err(|e| Error::io("set timer slack", e))?;
        let calls = self
            .lanes
            .iter()
            .map(|lane| lane.ring.share().call.try_clone())
            .collect::<Result<Vec<Event>>>()?;
        let mut fds: Vec<_> = calls.iter().map(|call| PollFd::new(call, PollFlags::IN)).collect();
        let mut shift = Shift::new(2 * self.disks);
        let mut phase = self.shared.phase();
        self.begin(&mut shift)?;
        while !self.lanes.iter().all(Lane::is_over) {
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

    /// Disables calls and sends the first requests.
    fn begin(&mut self, shift: &mut Shift) -> Result<()> {
        shift.answered_ns = shift.now_ns();
        for lane in &mut self.lanes {
            lane.ring.queue.disarm_calls();
            lane.refill(shift.now_ns());
            shift.stats[lane.account()].kicks += u64::from(lane.ring.notify()?);
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

    /// Checks every ring once. `false` if there was nothing to do.
    fn turn(&mut self, shift: &mut Shift) -> Result<bool> {
        let mut found = false;
        for lane in &mut self.lanes {
            let is_due = lane.due_ns().is_some_and(|due_ns| due_ns <= shift.now_ns());
            if is_due || lane.ring.queue.has_used() {
                found = true;
                shift.serve(lane)?;
            }
        }
        if found {
            self.shared.report(self.id, shift.answers);
        }
        Ok(found)
    }

    /// Waits: returns to poll again, or sleeps until a call.
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
        let due = self.lanes.iter().filter_map(Lane::due_ns).min();
        let nap = due.map(|due_ns| Duration::from_nanos(due_ns.saturating_sub(shift.now_ns())));
        wait_readable(fds, nap.unwrap_or(NAP).min(NAP))?;
        for (lane, fd) in self.lanes.iter_mut().zip(fds) {
            if !fd.revents().is_empty() {
                shift.stats[lane.account()].calls += lane.ring.take_calls();
            }
            // With EVENT_IDX an event that has been passed stays silent by itself.
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
}

impl Shift {
    fn new(accounts: usize) -> Self {
        Shift {
            stats: (0..accounts).map(|_| Stats::new()).collect(),
            late: (0..accounts).map(|_| Stats::new()).collect(),
            clock: Instant::now(),
            answers: 0,
            disarmed_at: 0,
            answered_ns: 0,
            started: Instant::now(),
            ended: None,
        }
    }

    #[inline]
    fn now_ns(&self) -> u64 {
        self.clock.elapsed().as_nanos() as u64
    }

    /// Processes a lane's completions, sends new requests, kicks if wanted, with one clock reading.
    #[inline]
    fn serve(&mut self, lane: &mut Lane) -> Result<()> {
        let now_ns = self.now_ns();
        // Requests completed after the end were not done in the measured time.
        let over = self.ended.is_some();
        let stats = if over { &mut self.late } else { &mut self.stats };
        let stats = &mut stats[lane.account()..][..2];
        let answers = lane.reap(now_ns, stats)?;
        if answers > 0 {
            self.answers += answers;
            stats[0].longest_gap_ns = stats[0].longest_gap_ns.max(now_ns - self.answered_ns);
            self.answered_ns = now_ns;
        }
        lane.refill(now_ns);
        stats[0].kicks += u64::from(lane.ring.notify()?);
        Ok(())
    }

    /// Starts measuring: discards the statistics of the ramp.
    fn restart(&mut self, lanes: &[Lane]) {
        for lane in lanes {
            lane.ring.take_calls();
        }
        self.stats.iter_mut().for_each(Stats::clear);
        self.answered_ns = self.now_ns();
        self.started = Instant::now();
    }

    /// Ends measuring; only the first call has an effect.
    fn end(&mut self, lanes: &[Lane]) {
        if self.ended.is_none() {
            for lane in lanes {
                self.stats[lane.account()].calls += lane.ring.take_calls();
            }
            self.ended = Some(Instant::now());
        }
    }

    fn harvest(mut self, lanes: Vec<Lane>) -> Harvest {
        for (stats, late) in self.stats.iter_mut().zip(self.late) {
            stats.add_errors(&late);
        }
        let elapsed = self.ended.unwrap_or(self.started).duration_since(self.started);
        Harvest { lanes, stats: self.stats, elapsed }
    }
}
