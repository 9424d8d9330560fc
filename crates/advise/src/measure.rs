//! Replays of the trace: what a format costs a drive.

use anyhow::Result;
use flowstone_image::{CreateOptions, Format, LogOptions};
use flowstone_replay::{Load, ReplayOptions, Report, Timing, replay};
use flowstone_ssd::SsdOptions;
use flowstone_trace::{Event, Kind, Trace};

use crate::summary::Summary;

/// A block that is written so often has been written over often enough: what the drive does then is
/// what it goes on doing.
pub const SETTLED_WRITES: f64 = 4.0;
/// More passes over a trace tell no more.
const PASSES_MAX: u64 = 1000;
/// What a write of a trace is replayed as at most, in all passes.
const WRITES_MAX: u64 = 20_000_000;

/// How the advice is found.
#[derive(Clone, Debug)]
pub struct AdviseOptions {
    /// The drive.
    pub ssd: SsdOptions,
    /// Share of the drive that the guest's disk is.
    pub fill: f64,
    /// How much may be programmed, in TB.
    pub endurance: Option<f64>,
    /// What the drive costs.
    pub price: Option<f64>,
}

/// How far it has come: so many of so many replays.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// What a format costs.
#[derive(Clone, Debug)]
pub struct Cost {
    pub report: Report,
    /// The least and the most that the total WAF may be: of the trace as it is, and so often over
    /// that what was written first is written over.
    pub range: [f64; 2],
}

impl Cost {
    /// What is reckoned with.
    pub fn waf(&self) -> f64 {
        self.range[1]
    }
}

/// What a format may cost, or why it cannot be had.
pub type Measured = std::result::Result<Cost, String>;

/// Measures formats under a trace.
pub struct Measurement<'trace> {
    trace: &'trace Trace,
    /// How often the trace is gone through so that it settles.
    passes: u64,
    options: &'trace AdviseOptions,
    has_times: bool,
}

impl<'trace> Measurement<'trace> {
    pub fn new(trace: &'trace Trace, summary: &Summary, options: &'trace AdviseOptions) -> Self {
        let wanted = (SETTLED_WRITES / summary.writes_per_block().max(1.0)).ceil() as u64;
        let affordable = WRITES_MAX / summary.writes.max(1);
        let passes = wanted.clamp(1, affordable.clamp(1, PASSES_MAX));
        let has_times = summary.duration.is_some();
        Self { trace, passes, options, has_times }
    }

    /// How often the trace is gone through.
    pub const fn passes(&self) -> u64 {
        self.passes
    }

    /// The drive that was said.
    pub const fn ssd(&self) -> SsdOptions {
        self.options.ssd
    }

    /// On the drive that was said, with the disk as it was.
    pub fn of(&self, format: Format, segment_bytes: Option<u64>) -> Result<Measured> {
        self.on(format, segment_bytes, self.options.ssd, false)
    }

    /// On another drive, or with all of the disk written at the start.
    pub fn on(
        &self,
        format: Format,
        segment_bytes: Option<u64>,
        ssd: SsdOptions,
        is_full: bool,
    ) -> Result<Measured> {
        let mut trace = self.trace.clone();
        if is_full {
            let bytes = trace.size.unwrap_or(0).max(trace.end());
            trace.events.retain(|event| event.kind != Kind::Present);
            let ranges = (0..bytes).step_by(1 << 30);
            let all = ranges.map(|at| Event::new(Kind::Present, at, (bytes - at).min(1 << 30)));
            trace.events.splice(0..0, all);
        }
        let log = LogOptions { segment_bytes, ..LogOptions::default() };
        let options = ReplayOptions {
            fill: self.options.fill,
            create: CreateOptions { log, ..CreateOptions::default() },
            ssd,
            timing: if self.has_times { Timing::Trace } else { Timing::Asap },
            ..ReplayOptions::new(Load::Trace(trace), format)
        };
        let once = match self.run(&options) {
            Ok(report) => report,
            // What does not fit, and what the model cannot be made of.
            Err(why) => return Ok(Err(format!("{why:#}"))),
        };
        if self.passes == 1 {
            let waf = once.figures.total_waf.unwrap_or(0.0);
            return Ok(Ok(Cost { report: once, range: [waf, waf] }));
        }
        let writes = once.figures.writes;
        let warmup = Some((self.passes - 1) * writes);
        let again = self.run(&ReplayOptions { passes: self.passes, warmup, ..options })?;
        let mut range = [&once, &again].map(|report| report.figures.total_waf.unwrap_or(0.0));
        range.sort_by(f64::total_cmp);
        let report = if again.figures.total_waf > once.figures.total_waf { again } else { once };
        Ok(Ok(Cost { report, range }))
    }

    fn run(&self, options: &ReplayOptions) -> Result<Report> {
        replay(options, &mut |_, _| ())
    }
}
