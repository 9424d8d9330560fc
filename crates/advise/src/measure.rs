//! Replays of the trace: the cost of a format for a drive.

use anyhow::Result;
use flowstone_formats::CreateOptions;
use flowstone_image::Format;
use flowstone_log::LogOptions;
use flowstone_replay::{Load, ReplayOptions, Report, Timing, replay};
use flowstone_ssd::SsdOptions;
use flowstone_trace::{Event, Kind, Trace};

use crate::summary::Summary;

/// Writes per block after which the drive is in a steady state.
pub const SETTLED_WRITES: f64 = 4.0;
/// Most passes over a trace.
const PASSES_MAX: u64 = 1000;
/// Most writes replayed in all passes.
const WRITES_MAX: u64 = 20_000_000;

/// Options of the advice.
#[derive(Clone, Debug)]
pub struct AdviseOptions {
    /// The drive.
    pub ssd: SsdOptions,
    /// The guest's disk as a fraction of the drive.
    pub fill: f64,
    /// TB that may be programmed.
    pub endurance: Option<f64>,
    /// Price of the drive.
    pub price: Option<f64>,
}

/// Progress callback: replays done, and replays in total.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// The cost of a format.
#[derive(Clone, Debug)]
pub struct Cost {
    pub report: Report,
    /// Least and greatest total WAF: of a single pass over the trace, and of enough passes for a
    /// steady state.
    pub range: [f64; 2],
}

impl Cost {
    /// Returns the WAF used in comparisons.
    pub fn waf(&self) -> f64 {
        self.range[1]
    }
}

/// The cost of a format, or why it is impossible.
pub type Measured = std::result::Result<Cost, String>;

/// Measures formats under a trace.
pub struct Measurement<'trace> {
    trace: &'trace Trace,
    /// Passes over the trace for a steady state.
    pub passes: u64,
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

    /// Measures on the given drive, with the disk as it was.
    pub fn of(&self, format: Format, segment_bytes: Option<u64>) -> Result<Measured> {
        self.on(format, segment_bytes, self.options.ssd, false)
    }

    /// Measures on another drive, or with the whole disk written at the start.
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
        let run = |options: &ReplayOptions| replay(options, &mut |_, _| ());
        let once = match run(&options) {
            Ok(report) => report,
            // The image does not fit, or the model is impossible.
            Err(why) => return Ok(Err(format!("{why:#}"))),
        };
        if self.passes == 1 {
            let waf = once.figures.total_waf.unwrap_or(0.0);
            return Ok(Ok(Cost { report: once, range: [waf, waf] }));
        }
        let writes = once.figures.writes;
        let warmup = Some((self.passes - 1) * writes);
        let again = run(&ReplayOptions { passes: self.passes, warmup, ..options })?;
        let mut range = [&once, &again].map(|report| report.figures.total_waf.unwrap_or(0.0));
        range.sort_by(f64::total_cmp);
        let report = if again.figures.total_waf > once.figures.total_waf { again } else { once };
        Ok(Ok(Cost { report, range }))
    }
}
