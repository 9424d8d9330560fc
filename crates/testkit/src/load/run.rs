//! Controls a run: sets the devices up, starts the workers, moves them through the phases, watches
//! for a backend that dies or stalls, and sums the results up.

use std::mem::discriminant;
use std::ops::Range;
use std::slice;
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use super::cpu::CpuSample;
use super::lane::Lane;
use super::map::VerifyMap;
use super::options::{Limit, LoadOptions};
use super::report::{Latency, LoadReport};
use super::setup::Stage;
use super::shared::{Phase, Shared};
use super::source::Kind;
use super::stats::Stats;
use super::worker::{Harvest, Worker};
use crate::{Error, Result};

/// Interval of checks of the lanes.
const TICK: Duration = Duration::from_millis(5);

type Handle<'scope> = ScopedJoinHandle<'scope, Result<Harvest>>;

/// Runs a workload.
///
/// Requests that the backend fails are counted in the report; wrong data, and a backend that
/// stalls, dies permanently or violates the protocol, are errors.
pub fn run(options: &LoadOptions) -> Result<LoadReport> {
    run_with_map(options, None).map(|(report, _)| report)
}

/// Runs a workload that also verifies the writes of an earlier run if `map` is given, and returns
/// the new map. The map must be from a run with the same block size, span and seed.
pub fn run_with_map(
    options: &LoadOptions,
    map: Option<VerifyMap>,
) -> Result<(LoadReport, VerifyMap)> {
    let (stage, lanes) = Stage::set_up(options, 0, map)?;
    let loads = slice::from_ref(options);
    let mut stages = [stage];
    let mut act = Act::play(loads, &mut stages, lanes, options.limit)?;
    if options.verify && options.verify_final {
        act.lanes.iter_mut().for_each(Lane::start_sweep);
        let lanes = std::mem::take(&mut act.lanes);
        let sweep = Act::play(loads, &mut stages, lanes, Limit::Ops(0))?;
        act.stats[0].add_errors(&sweep.stats[0]);
        act.lanes = sweep.lanes;
    }
    stages[0].shut_down(&act.lanes)?;
    let report = act.report(0, loads, &stages);
    Ok((report, VerifyMap::join(act.lanes.into_iter().map(Lane::into_map))))
}

/// Runs workloads on several disks at once, all their queues on the same client threads. The first
/// one determines the threads, the detection of completions, the end and the server process.
/// Returns the results of all disks together, and of each.
pub fn run_together(loads: &[LoadOptions]) -> Result<(LoadReport, Vec<LoadReport>)> {
    let first = loads.first().ok_or_else(|| Error::Misuse("a run on no disk".into()))?;
    let alike = |load: &LoadOptions| discriminant(&load.limit) == discriminant(&first.limit);
    if !loads.iter().all(|load| alike(load) && !load.verify_final) {
        return Err(Error::Misuse("disks whose runs end differently".into()));
    }
    let (mut stages, mut lanes) = (Vec::new(), Vec::new());
    for (disk, load) in loads.iter().enumerate() {
        let (stage, theirs) = Stage::set_up(load, disk, None)?;
        stages.push(stage);
        lanes.extend(theirs);
    }
    let act = Act::play(loads, &mut stages, lanes, first.limit)?;
    let mut left = &act.lanes[..];
    for (stage, load) in stages.iter_mut().zip(loads) {
        let (theirs, others) = left.split_at(load.client.queues);
        stage.shut_down(theirs)?;
        left = others;
    }
    let each = (0..loads.len()).map(|disk| act.report(disk, loads, &stages)).collect();
    Ok((act.report_all(loads, &stages), each))
}

/// One pass of all workers, from start to drain.
struct Act {
    lanes: Vec<Lane>,
    /// By account of the lanes.
    stats: Vec<Stats>,
    /// By account: the sum of the workers' rates.
    iops: Vec<f64>,
    elapsed: Duration,
    server: Server,
}

/// CPU time of the server, and the time it was measured over.
#[derive(Clone, Copy)]
struct Server {
    cpu: Option<Duration>,
    elapsed: Duration,
}

impl Act {
    fn play(
        loads: &[LoadOptions],
        stages: &mut [Stage],
        lanes: Vec<Lane>,
        limit: Limit,
    ) -> Result<Self> {
        let (options, disks) = (&loads[0], loads.len());
        let threads = options.thread_count(lanes.len());
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
                    let worker = Worker { id, lanes, disks, shared: &shared, completion, cpu };
                    scope.spawn(move || worker.run())
                })
                .collect();
            let mut watch = Watch { loads, stages, shared: &shared, handles: &handles };
            let server = watch.conduct(limit);
            if server.is_err() {
                shared.enter(Phase::Abort);
            }
            let harvests = collect(handles);
            // A worker's error is more specific than the watch's, which sees only consequences.
            Ok(Self::sum_up(harvests?, disks, server?))
        })
    }

    fn sum_up(harvests: Vec<Harvest>, disks: usize, server: Server) -> Self {
        let mut act = Act {
            lanes: Vec::new(),
            stats: (0..2 * disks).map(|_| Stats::new()).collect(),
            iops: vec![0.0; 2 * disks],
            elapsed: Duration::ZERO,
            server,
        };
        let threads = harvests.len();
        let queues = harvests.iter().map(|harvest| harvest.lanes.len()).sum();
        let mut lanes: Vec<Option<Lane>> = (0..queues).map(|_| None).collect();
        for (id, harvest) in harvests.into_iter().enumerate() {
            for (account, stats) in harvest.stats.iter().enumerate() {
                act.iops[account] += stats.ops() as f64 / harvest.elapsed.as_secs_f64().max(1e-9);
                act.stats[account].add(stats);
            }
            act.elapsed = act.elapsed.max(harvest.elapsed);
            for (turn, lane) in harvest.lanes.into_iter().enumerate() {
                lanes[turn * threads + id] = Some(lane);
            }
        }
        act.lanes = lanes.into_iter().flatten().collect();
        act
    }

    /// Returns the results of one disk. CPU time is measured by thread and not by disk: it is
    /// reported only for a single disk.
    fn report(&self, disk: usize, loads: &[LoadOptions], stages: &[Stage]) -> LoadReport {
        let lanes = self.lanes.iter().filter(|lane| lane.disk == disk);
        let accounts = 2 * disk..2 * disk + 2;
        let report = self.report_of(lanes, accounts, &loads[disk], &stages[disk..=disk]);
        let server_us_per_io = report.server_us_per_io.filter(|_| loads.len() == 1);
        LoadReport { server_us_per_io, ..report }
    }

    /// Returns the results of all disks.
    fn report_all(&self, loads: &[LoadOptions], stages: &[Stage]) -> LoadReport {
        self.report_of(self.lanes.iter(), 0..self.stats.len(), &loads[0], stages)
    }

    fn report_of<'a>(
        &self,
        lanes: impl Iterator<Item = &'a Lane>,
        accounts: Range<usize>,
        options: &LoadOptions,
        stages: &[Stage],
    ) -> LoadReport {
        let (mut stats, mut commits) = (Stats::new(), Stats::new());
        for account in accounts.clone() {
            stats.add(&self.stats[account]);
            if account % 2 == 1 {
                commits.add(&self.stats[account]);
            }
        }
        let (mut queues, mut verified_blocks) = (0, 0);
        for lane in lanes {
            queues += 1;
            verified_blocks += lane.checked();
        }
        let (ops, seconds) = (stats.ops(), self.elapsed.as_secs_f64());
        let per_io = |count: f64| if ops == 0 { 0.0 } else { count / ops as f64 };
        // The server was sampled over slightly more time than the workers measured.
        let scale = seconds / self.server.elapsed.as_secs_f64().max(1e-9);
        let server_us = |cpu: Duration| per_io(cpu.as_secs_f64() * 1e6 * scale.min(1.0));
        LoadReport {
            queues,
            threads: options.thread_count(queues),
            seconds,
            ops,
            iops: self.iops[accounts].iter().sum(),
            latency: Latency::of(&stats.requests()),
            write: Latency::of(stats.of(Kind::Write)),
            discard: Latency::of(stats.of(Kind::Discard)),
            flush: Latency::of(stats.of(Kind::Flush)),
            commit: Latency::of(commits.of(Kind::Write)),
            kicks: stats.kicks,
            calls: stats.calls,
            longest_gap_ms: stats.longest_gap_ns as f64 / 1e6,
            kicks_per_io: per_io(stats.kicks as f64),
            calls_per_io: per_io(stats.calls as f64),
            server_us_per_io: self.server.cpu.map(server_us),
            errors: stats.errors,
            first_error: stats.first_error,
            verified_blocks,
            reconnects: stages.iter().map(Stage::reconnects).sum(),
        }
    }
}

/// The controlling thread while the workers run.
struct Watch<'a, 'scope> {
    loads: &'a [LoadOptions],
    stages: &'a mut [Stage],
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
            for stage in self.stages.iter_mut() {
                if stage.lost_backend() {
                    stage.recover()?;
                    seen.1 = Instant::now();
                }
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
        let stall_timeout = self.loads[0].stall_timeout;
        if seen.1.elapsed() < stall_timeout {
            return Ok(());
        }
        let timeout_ms = stall_timeout.as_millis() as u64;
        let rings = self.stages.iter().map(Stage::describe_rings).collect::<Vec<_>>().join("; ");
        Err(Error::Timeout { action: format!("{total} requests were done; {rings}"), timeout_ms })
    }

    /// Returns the server's CPU time; `None` if it is unknown or the server is being replaced.
    fn sample(&self) -> Option<CpuSample> {
        CpuSample::take(self.loads[0].server_pid?).ok()
    }
}

/// Assigns lane q to thread q modulo `threads`.
fn deal(lanes: Vec<Lane>, threads: usize) -> Vec<Vec<Lane>> {
    let mut groups: Vec<Vec<Lane>> = (0..threads).map(|_| Vec::new()).collect();
    for (index, lane) in lanes.into_iter().enumerate() {
        groups[index % threads].push(lane);
    }
    groups
}

/// Returns all results, or the first error.
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
