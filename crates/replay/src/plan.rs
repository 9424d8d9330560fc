//! The plan of a guest: its loads and their parts. It is made, and invalid options are refused,
//! before anything is created.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use flowstone_trace::{Event, Kind, Trace};

use crate::guest::requests_of;
use crate::load::{BLOCK_BYTES, SoonAgain, Writes};
use crate::options::{Load, ReplayOptions, Timing};

/// Bytes of a write that fills the disk.
const FILL_BYTES: u64 = 128 << 10;
/// Times that a generated load overwrites the disk before the measured part, and in it.
const WARMUP_TURNS: u64 = 7;
const MEASURED_TURNS: u64 = 4;
/// Longest trace; a longer one does not count in microseconds.
const TIME_MAX: Duration = Duration::from_secs(100 * 366 * 86_400);

/// Requests in order.
pub type Events = Box<dyn Iterator<Item = Event>>;

/// The plan of a guest.
pub struct Plan {
    /// Writes of the disk's initial content.
    pub held: Events,
    /// The load that follows.
    pub load: Events,
    /// Requests of the load, and how many of them precede the measured part.
    pub requests: u64,
    /// See above.
    pub warmup: u64,
    /// Start of each phase of a trace, in requests of the load.
    pub phases: Vec<(String, u64)>,
}

impl Plan {
    /// Makes the plans of all guests, which share a trace.
    pub fn of_all(options: &ReplayOptions, disk_bytes: u64) -> Result<Vec<Self>> {
        let guests = 0..options.images;
        match &options.load {
            Load::Generated(generator, ops) => {
                let of = |number| {
                    let writes = |blocks| Writes::new(*generator, blocks, options.seed_of(number));
                    Self::generated(options, writes, *ops, disk_bytes)
                };
                guests.map(of).collect()
            }
            Load::Trace(trace) => {
                let (held, events): (Vec<_>, Vec<_>) =
                    trace.events.iter().copied().partition(|event| event.kind == Kind::Present);
                let held: Arc<[Event]> = held.into();
                let once: Arc<[Event]> = events.into_iter().flat_map(requests_of).collect();
                guests.map(|_| Self::of_trace(options, trace, &held, &once)).collect()
            }
        }
    }

    fn generated(
        options: &ReplayOptions,
        writes: impl FnOnce(u32) -> Writes,
        ops: Option<u64>,
        disk_bytes: u64,
    ) -> Result<Self> {
        let blocks = disk_bytes / BLOCK_BYTES;
        let warmup = options.warmup.unwrap_or(WARMUP_TURNS * blocks);
        let requests = warmup.checked_add(ops.unwrap_or(MEASURED_TURNS * blocks));
        let requests = requests.context("--warmup and --ops are too many")?;
        let blocks = u32::try_from(blocks).context("the disk is too large")?;
        ensure!(options.timing == Timing::Asap, "a made load has no times; leave --timing out");
        let soon = options.tells_soon.then(|| SoonAgain::new(blocks));
        let writes = writes(blocks).take(requests as usize);
        let writes = writes.scan(soon, |soon, event| {
            Some(soon.as_mut().map_or(event, |soon| soon.classified(event)))
        });
        let held = Box::new(fill(0..disk_bytes));
        Ok(Self { held, load: Box::new(writes), requests, warmup, phases: Vec::new() })
    }

    fn of_trace(
        options: &ReplayOptions,
        trace: &Trace,
        held: &Arc<[Event]>,
        once: &Arc<[Event]>,
    ) -> Result<Self> {
        let held = Arc::clone(held);
        let held = (0..held.len()).map(move |index| held[index]);
        let held = held.flat_map(|it| fill(it.offset..it.offset + it.bytes));
        let once = Arc::clone(once);
        ensure!(!once.is_empty(), "the trace has no request");
        let passes = options.passes;
        let of_pass = once.len() as u64;
        let requests = of_pass.checked_mul(passes).context("--passes is too many")?;
        let warmup = requests_to(&once, passes, options.warmup.unwrap_or(0))?;
        let has_times = once.iter().all(|event| event.at.is_some());
        let is_timed = options.timing == Timing::Trace;
        ensure!(has_times || !is_timed, "the trace has no times; leave --timing out");
        let times = times(&once);
        let length = times.end - times.start;
        ensure!(
            !is_timed || length.as_secs_f64() * passes as f64 <= TIME_MAX.as_secs_f64(),
            "the times of the trace are a hundred years apart: they are no microseconds"
        );
        let load = (0..passes).flat_map(move |pass| {
            let once = Arc::clone(&once);
            let later = length.saturating_mul(u32::try_from(pass).unwrap_or(u32::MAX));
            (0..once.len()).map(move |index| {
                let event = once[index];
                let at = event.at.map(|at| (at - times.start).saturating_add(later));
                Event { at, ..event }
            })
        });
        let phases = phases(trace, passes, of_pass);
        Ok(Self { held: Box::new(held), load: Box::new(load), requests, warmup, phases })
    }
}

/// Returns the starts of phases, in requests: each pass has all phases.
fn phases(trace: &Trace, passes: u64, of_pass: u64) -> Vec<(String, u64)> {
    if trace.phases.is_empty() {
        return Vec::new();
    }
    let requests = |event: &Event| match event.kind {
        Kind::Present => 0,
        _ => requests_of(*event).count() as u64,
    };
    let (mut at, mut sum) = (0, 0);
    let once = trace.phases.iter().map(|phase| {
        sum += trace.events[at..phase.first].iter().map(requests).sum::<u64>();
        at = phase.first;
        (phase.name.clone(), sum)
    });
    let once: Vec<_> = once.collect();
    let of = |pass: u64| once.iter().map(move |(name, at)| (name.clone(), pass * of_pass + at));
    (0..passes).flat_map(of).collect()
}

/// Returns writes that fill a range.
fn fill(range: Range<u64>) -> impl Iterator<Item = Event> {
    let end = range.end;
    range.step_by(FILL_BYTES as usize).map(move |offset| {
        let bytes = FILL_BYTES.min(end - offset);
        Event::new(Kind::Write, offset, bytes)
    })
}

/// Returns the number of a trace's requests up to this many writes.
pub fn requests_to(once: &[Event], passes: u64, writes: u64) -> Result<u64> {
    if writes == 0 {
        return Ok(0);
    }
    let is_write = |event: &Event| event.kind == Kind::Write;
    let of_pass = once.iter().filter(|it| is_write(it)).count() as u64;
    ensure!(
        writes < of_pass * passes,
        "--warmup {writes} leaves nothing to measure: there are {} writes; give fewer, or more \
         --passes",
        of_pass * passes
    );
    let left = writes % of_pass;
    let mut seen = 0;
    let within = once.iter().take_while(|event| {
        seen += u64::from(is_write(event));
        seen <= left
    });
    Ok(writes / of_pass * once.len() as u64 + within.count() as u64)
}

/// Returns the first and the last time of a trace. Some count from the boot of a machine, or from
/// 1970.
fn times(events: &[Event]) -> Range<Duration> {
    let at = || events.iter().filter_map(|event| event.at);
    at().min().unwrap_or_default()..at().max().unwrap_or_default()
}
