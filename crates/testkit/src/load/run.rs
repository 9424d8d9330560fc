//! Conducts a run: sets the device up, starts the workers, leads them through the phases, watches
//! for a backend that dies or stalls, and adds everything up.

use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use super::cpu::{CpuSample, CpuTime};
use super::lane::Lane;
use super::map::VerifyMap;
use super::options::{Limit, LoadOptions};
use super::report::{LoadReport, Totals};
use super::setup::Stage;
use super::shared::{Phase, Shared};
use super::stats::Stats;
use super::worker::{Harvest, Worker};
use crate::{Error, Result};

/// How often the conductor checks the lanes.
const TICK: Duration = Duration::from_millis(5);

type Handle<'scope> = ScopedJoinHandle<'scope, Result<Harvest>>;

/// Runs a workload.
///
/// Requests that the backend fails are counted in the report; data that is wrong, a backend that
/// stalls, dies for good or breaks the protocol are errors.
pub fn run(options: &LoadOptions) -> Result<LoadReport> {
    run_with_map(options, None).map(|(report, _)| report)
}

/// Runs a workload that verifies what an earlier run wrote, if `map` is given, and returns what it
/// knows of the disk itself. The map must be from a run with the same block size, span and seed.
pub fn run_with_map(
    options: &LoadOptions,
    map: Option<VerifyMap>,
) -> Result<(LoadReport, VerifyMap)> {
    let (mut stage, lanes) = Stage::set_up(options, map)?;
    let mut act = Act::play(options, &mut stage, lanes, options.limit)?;
    let mut errors = (act.stats.errors, act.stats.first_error.clone());
    if options.verify && options.verify_final {
        act.lanes.iter_mut().for_each(Lane::start_sweep);
        let lanes = std::mem::take(&mut act.lanes);
        let sweep = Act::play(options, &mut stage, lanes, Limit::Ops(0))?;
        errors.0 += sweep.stats.errors;
        errors.1 = errors.1.or(sweep.stats.first_error);
        act.lanes = sweep.lanes;
    }
    (act.stats.errors, act.stats.first_error) = errors;
    stage.shut_down(options, &act.lanes)?;
    Ok(act.report(options, &stage))
}

/// One go of all workers, from start to drain.
struct Act {
    lanes: Vec<Lane>,
    stats: Stats,
    elapsed: Duration,
    iops: f64,
    client_cpu: Duration,
    server: Server,
}

/// CPU time of the server, and over which time.
#[derive(Clone, Copy)]
struct Server {
    cpu: Option<CpuTime>,
    elapsed: Duration,
}

impl Act {
    fn play(
        options: &LoadOptions,
        stage: &mut Stage,
        lanes: Vec<Lane>,
        limit: Limit,
    ) -> Result<Self> {
        let threads = options.thread_count();
        let phase = if matches!(limit, Limit::Time { .. }) { Phase::Ramp } else { Phase::Measure };
        let shared = Shared::new(phase, threads);
        let groups = deal(lanes, threads);
        thread::scope(|scope| {
            let handles: Vec<Handle<'_>> = groups
                .into_iter()
                .enumerate()
                .map(|(id, lanes)| {
                    let cpu = options.cpus.get(id % options.cpus.len().max(1)).copied();
                    let completion = options.completion;
                    let worker = Worker { id, lanes, shared: &shared, completion, cpu };
                    scope.spawn(move || worker.run())
                })
                .collect();
            let mut watch = Watch { options, stage, shared: &shared, handles: &handles };
            let server = watch.conduct(limit);
            if server.is_err() {
                shared.enter(Phase::Abort);
            }
            let harvests = collect(handles);
            // A worker knows better what went wrong than the watch, which sees consequences.
            Self::sum_up(harvests?, server?)
        })
    }

    fn sum_up(harvests: Vec<Harvest>, server: Server) -> Result<Self> {
        let mut act = Act {
            lanes: Vec::new(),
            stats: Stats::new(),
            elapsed: Duration::ZERO,
            iops: 0.0,
            client_cpu: Duration::ZERO,
            server,
        };
        let threads = harvests.len();
        let queues = harvests.iter().map(|harvest| harvest.lanes.len()).sum();
        let mut lanes: Vec<Option<Lane>> = (0..queues).map(|_| None).collect();
        for (id, harvest) in harvests.into_iter().enumerate() {
            act.iops += harvest.stats.ops() as f64 / harvest.elapsed.as_secs_f64().max(1e-9);
            act.stats.add(&harvest.stats);
            act.elapsed = act.elapsed.max(harvest.elapsed);
            act.client_cpu += harvest.cpu;
            for (turn, lane) in harvest.lanes.into_iter().enumerate() {
                lanes[turn * threads + id] = Some(lane);
            }
        }
        act.lanes = lanes.into_iter().flatten().collect();
        Ok(act)
    }

    fn report(self, options: &LoadOptions, stage: &Stage) -> (LoadReport, VerifyMap) {
        let verified_blocks = self.lanes.iter().map(Lane::checked).sum();
        let totals = Totals {
            stats: self.stats,
            elapsed: self.elapsed,
            iops: self.iops,
            client_cpu: self.client_cpu,
            server_cpu: self.server.cpu,
            server_elapsed: self.server.elapsed,
            verified_blocks,
            reconnects: stage.reconnects(),
            event_idx: stage.event_idx(),
            indirect: stage.indirect(),
        };
        let map = VerifyMap::join(self.lanes.into_iter().map(Lane::into_map));
        (LoadReport::new(options, totals), map)
    }
}

/// The conductor while the workers play.
struct Watch<'a, 'scope> {
    options: &'a LoadOptions,
    stage: &'a mut Stage,
    shared: &'a Shared,
    handles: &'a [Handle<'scope>],
}

impl Watch<'_, '_> {
    fn conduct(&mut self, limit: Limit) -> Result<Server> {
        if let Limit::Time { ramp, .. } = limit {
            self.attend(Some(ramp))?;
        }
        let (began, before) = (Instant::now(), self.sample());
        self.shared.enter(Phase::Measure);
        let time = match limit {
            Limit::Time { runtime, .. } => Some(runtime),
            Limit::Ops(_) => None,
        };
        self.attend(time)?;
        let (elapsed, after) = (began.elapsed(), self.sample());
        self.shared.enter(Phase::Drain);
        self.attend(None)?;
        let cpu = after.zip(before).map(|(after, before)| after.since(&before));
        Ok(Server { cpu, elapsed })
    }

    /// Watches until the time is up or, without one, until all workers have returned.
    fn attend(&mut self, time: Option<Duration>) -> Result<()> {
        let end = time.map(|time| Instant::now() + time);
        let mut seen = (self.shared.total(), Instant::now());
        while !self.handles.iter().all(ScopedJoinHandle::is_finished) {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(());
            }
            thread::sleep(left.unwrap_or(TICK).min(TICK));
            if self.stage.lost_backend() {
                self.stage.recover(self.options)?;
                seen.1 = Instant::now();
            }
            self.check_stall(&mut seen)?;
        }
        Ok(())
    }

    fn check_stall(&self, seen: &mut (u64, Instant)) -> Result<()> {
        let total = self.shared.total();
        if total != seen.0 {
            *seen = (total, Instant::now());
        }
        if seen.1.elapsed() < self.options.stall_timeout {
            return Ok(());
        }
        let timeout_ms = self.options.stall_timeout.as_millis() as u64;
        let rings = self.stage.describe_rings();
        Err(Error::Timeout { action: format!("{total} requests were done; {rings}"), timeout_ms })
    }

    /// The server's CPU time; nothing when it is not known or just being replaced.
    fn sample(&self) -> Option<CpuSample> {
        CpuSample::take(self.options.server_pid?).ok()
    }
}

/// Lane q goes to thread q modulo `threads`.
fn deal(lanes: Vec<Lane>, threads: usize) -> Vec<Vec<Lane>> {
    let mut groups: Vec<Vec<Lane>> = (0..threads).map(|_| Vec::new()).collect();
    for (index, lane) in lanes.into_iter().enumerate() {
        groups[index % threads].push(lane);
    }
    groups
}

/// All results, or the first error.
fn collect(handles: Vec<Handle<'_>>) -> Result<Vec<Harvest>> {
    let mut harvests = Vec::with_capacity(handles.len());
    let mut first_error = None;
    for handle in handles {
        match handle.join().expect("workers return errors and do not panic") {
            Ok(harvest) => harvests.push(harvest),
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    first_error.map_or(Ok(harvests), Err)
}
