//! The advice: the best format, by how much, circumstances that would change it, and what the trace
//! cannot tell.

use std::time::Duration;

use anyhow::{Result, ensure};
use flowstone_block::format_size;
use flowstone_image::Format;
use flowstone_ssd::{SsdOptions, TrimMode};
use flowstone_trace::Trace;
use serde::Serialize;

use crate::cache::{self, CacheSize};
use crate::measure::{AdviseOptions, Cost, Measured, Measurement, Progress, SETTLED_WRITES};
use crate::summary::Summary;
use crate::wear::Wear;

/// Another format than raw is advised if its WAF is below this fraction of raw's.
const WORTH: f64 = 0.95;
/// Rate of requests a second from which a disk should have its own thread: a shared poller handles
/// 500,000 or more in all (docs/benchmarks.md, tmpfs), and others wait for its turns.
const BUSY_RATE: u64 = 50_000;
const DAY: Duration = Duration::from_secs(86_400);
const SEGMENT_BYTES_MAX: u64 = 1 << 30;

/// The effect of one format on the drive.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Alternative {
    /// Name of the format.
    pub format: String,
    /// Bytes programmed by the drive per byte written by the guest; absent if the format does not
    /// fit, or nothing was written.
    pub total_waf: Option<f64>,
    /// For a trace that does not settle: least and greatest WAF.
    pub range: Option<[f64; 2]>,
    /// Write amplification of the image.
    pub host_waf: Option<f64>,
    /// Write amplification of the drive.
    pub device_waf: Option<f64>,
    /// Seconds for which the drive is busy.
    pub device_seconds: Option<f64>,
    /// Why the format is impossible.
    pub why_not: Option<String>,
}

/// Another circumstance, and the answer in it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// The circumstance.
    pub condition: String,
    /// The best format then.
    pub format: String,
    /// The figures of each format then.
    pub alternatives: Vec<Alternative>,
}

/// The advice.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    /// The recommended format.
    pub format: String,
    /// Reasons for the format and the other recommendations.
    pub because: Vec<String>,
    /// Figures of each format, the best first.
    pub alternatives: Vec<Alternative>,
    /// Recommended cache size; 0 if none pays off.
    pub cache_bytes: u64,
    /// Fraction of the blocks read that such a cache answers.
    pub cache_hit_ratio: f64,
    /// Reserve of a log image.
    pub reserve_percent: Option<u32>,
    /// Segment size of a log image.
    pub segment_bytes: Option<u64>,
    /// Value for `--pollers`.
    pub pollers: &'static str,
    /// Wear over time, if the trace has times.
    pub wear: Option<Wear>,
    /// Answers in other circumstances.
    pub changes: Vec<Change>,
    /// Limits of what the trace can tell.
    pub unknown: Vec<String>,
}

/// Finds the advice.
///
/// # Errors
/// If the trace has no request, or its disk does not fit in a model.
pub fn advise(trace: &Trace, options: &AdviseOptions, progress: Progress<'_>) -> Result<Advice> {
    ensure!(options.fill > 0.0 && options.fill <= 1.0, "--fill is a share of the drive, 0 to 1");
    let summary = Summary::of(trace);
    let measurement = Measurement::new(trace, &summary, options);
    let circumstances = circumstances(&options.ssd, &summary, trace);
    let all = (2 + Format::ALL.len() + 2 * circumstances.len()) as u64;
    let mut done = 0;
    let mut step = |done_now: u64| {
        done += done_now;
        progress(done, all);
    };
    let raw = measurement.of(Format::Raw, None)?;
    // Nothing can be said of a disk that does not fit on the drive as it is.
    if let Err(why) = raw {
        anyhow::bail!(why);
    }
    step(1);
    let qcow2 = measurement.of(Format::Qcow2, None)?;
    step(1);
    let log = best_log(&measurement, options)?;
    step(2);
    let measured = vec![(Format::Raw, raw), (Format::Qcow2, qcow2), (Format::Log, log)];
    let mut changes = Vec::new();
    for (name, ssd, is_full) in circumstances {
        let on = |format| measurement.on(format, None, ssd, is_full);
        let measured = [(Format::Raw, on(Format::Raw)?), (Format::Log, on(Format::Log)?)];
        step(2);
        let alternatives = alternatives(&measured);
        changes.push(Change { condition: name, format: best(&measured).to_string(), alternatives });
    }
    let cache = cache::size(trace);
    step(1);
    let passes = measurement.passes;
    let findings = Findings { trace, summary, options, passes, measured, changes, cache };
    Ok(findings.advice())
}

/// Returns possible variations of the drive and of the disk.
fn circumstances(
    ssd: &SsdOptions,
    summary: &Summary,
    trace: &Trace,
) -> Vec<(String, SsdOptions, bool)> {
    let mut found = Vec::new();
    if ssd.trim != TrimMode::Off {
        let deaf = SsdOptions { trim: TrimMode::Off, is_aged: true, ..*ssd };
        let name = "the drive hears of no TRIM (a file system without -o discard or fstrim)";
        found.push((name.into(), deaf, false));
    }
    let other_unit = if ssd.unit_bytes < 16 << 10 { 16 << 10 } else { 4 << 10 };
    if ssd.block_bytes.is_multiple_of(other_unit) && ssd.block_bytes >= 2 * other_unit {
        let name = format!("the drive maps units of {}", format_size(other_unit));
        found.push((name, SsdOptions { unit_bytes: other_unit, ..*ssd }, false));
    }
    let disk = trace.size.unwrap_or(0).max(trace.end());
    if summary.present_bytes.unwrap_or(0) < disk / 10 * 9 {
        found.push(("the disk is full".into(), *ssd, true));
    }
    found
}

/// Measures a log image with default segments, and with segments of an erase block. Returns the
/// better one.
fn best_log(measurement: &Measurement<'_>, options: &AdviseOptions) -> Result<Measured> {
    let by_default = measurement.of(Format::Log, None)?;
    let block = options.ssd.block_bytes.next_power_of_two();
    let Ok(cost) = &by_default else { return Ok(by_default) };
    let is_other = cost.report.segment_bytes.is_some_and(|segment| segment < block);
    if !is_other || block > SEGMENT_BYTES_MAX {
        return Ok(by_default);
    }
    let as_blocks = measurement.of(Format::Log, Some(block))?;
    let is_better = as_blocks.as_ref().is_ok_and(|it| it.waf() < cost.waf());
    Ok(if is_better { as_blocks } else { by_default })
}

/// Returns raw, unless another format wins by enough at both ends of the range.
fn best(measured: &[(Format, Measured)]) -> Format {
    let cost_of = |wanted| {
        let found = measured.iter().find(|(format, _)| *format == wanted);
        found.and_then(|(_, measured)| measured.as_ref().ok())
    };
    let Some(raw) = cost_of(Format::Raw) else { return Format::Raw };
    let wins = |cost: &&Cost| (0..2).all(|end| cost.range[end] < raw.range[end] * WORTH);
    let others = [Format::Qcow2, Format::Log].into_iter();
    let winners = others.filter_map(|format| Some((format, cost_of(format).filter(wins)?)));
    let least = winners.min_by(|(_, one), (_, other)| one.waf().total_cmp(&other.waf()));
    least.map_or(Format::Raw, |(format, _)| format)
}

fn alternatives(measured: &[(Format, Measured)]) -> Vec<Alternative> {
    let alternative = |(format, measured): &(Format, Measured)| {
        let cost = measured.as_ref();
        let report = cost.map(|cost| &cost.report).ok();
        let is_known = report.is_some_and(|report| report.figures.guest_blocks > 0.0);
        let range = cost.ok().map(|cost| cost.range).filter(|[least, most]| least < most);
        Alternative {
            format: format.to_string(),
            total_waf: cost.ok().filter(|_| is_known).map(Cost::waf),
            range,
            host_waf: report.and_then(|it| it.figures.host_waf),
            device_waf: report.and_then(|it| it.figures.device_waf),
            device_seconds: report.and_then(|it| it.figures.device_seconds),
            why_not: cost.err().cloned(),
        }
    };
    let mut all: Vec<_> = measured.iter().map(alternative).collect();
    let order = |it: &Alternative| it.total_waf.unwrap_or(f64::INFINITY);
    all.sort_by(|one, other| order(one).total_cmp(&order(other)));
    all
}

/// Everything that has been measured.
struct Findings<'trace> {
    trace: &'trace Trace,
    summary: Summary,
    options: &'trace AdviseOptions,
    /// Number of passes over the trace.
    passes: u64,
    measured: Vec<(Format, Measured)>,
    changes: Vec<Change>,
    cache: Option<CacheSize>,
}

impl Findings<'_> {
    fn advice(self) -> Advice {
        let Self { summary, options, measured, cache, .. } = &self;
        let format = best(measured);
        let chosen = measured.iter().find(|(it, _)| *it == format);
        let cost = chosen.and_then(|(_, measured)| measured.as_ref().ok());
        let cost = cost.expect("raw was measured, and so was what is better");
        let report = &cost.report;
        let wafs = (report.figures.host_waf.unwrap_or(0.0), cost.waf());
        let wear =
            |time| Wear::new(summary.written_bytes, time, wafs, options.endurance, options.price);
        let is_busy = summary.busiest_second.is_some_and(|rate| rate >= BUSY_RATE);
        let alternatives = alternatives(measured);
        Advice {
            format: format.to_string(),
            because: reasons(summary, &alternatives, format, *cache),
            alternatives,
            cache_bytes: cache.map_or(0, |cache| cache.bytes),
            cache_hit_ratio: cache.map_or(0.0, |cache| cache.hit_ratio),
            reserve_percent: report.reserve_percent,
            segment_bytes: report.segment_bytes,
            pollers: if is_busy { "per-queue" } else { "auto" },
            wear: summary.duration.map(wear),
            unknown: unknown(summary, self.passes, options, self.trace),
            changes: self.changes,
        }
    }
}

fn reasons(
    summary: &Summary,
    alternatives: &[Alternative],
    format: Format,
    cache: Option<CacheSize>,
) -> Vec<String> {
    let mut reasons = Vec::new();
    let known = alternatives.iter().filter_map(|it| Some((&it.format, it.total_waf?)));
    let listed: Vec<_> = known.map(|(format, waf)| format!("{format} {waf:.2}")).collect();
    match (listed.is_empty(), format) {
        (true, _) => {
            reasons.push("nothing is written: the format decides nothing for flash".into());
        }
        (false, Format::Raw) => reasons.push(format!(
            "no format programs 5 % less than raw, by byte that the guest writes: {}",
            listed.join(", ")
        )),
        (false, _) => reasons.push(format!(
            "{format} programs at least 5 % less than raw, by byte that the guest writes: {}",
            listed.join(", ")
        )),
    }
    let unfit = alternatives.iter().filter_map(|it| it.why_not.as_ref());
    reasons.extend(unfit.cloned());
    reasons.push(match cache {
        None => "nothing is read: a cache answers nothing".into(),
        Some(CacheSize { bytes: 0, next_gain, step_bytes, .. }) => format!(
            "no size of a cache pays: {} would answer {:.2} % of the blocks read",
            format_size(step_bytes),
            next_gain * 100.0
        ),
        Some(CacheSize { bytes, hit_ratio, next_gain, step_bytes }) => format!(
            "a cache of {} answers {:.1} % of the blocks read; {} more would add {:.2} %",
            format_size(bytes),
            hit_ratio * 100.0,
            format_size(step_bytes),
            next_gain * 100.0
        ),
    });
    if let Some(rate) = summary.busiest_second {
        reasons.push(format!(
            "the busiest second has {rate} requests; a disk with fewer than {BUSY_RATE} may share a \
             poller"
        ));
    }
    reasons
}

fn unknown(summary: &Summary, passes: u64, options: &AdviseOptions, trace: &Trace) -> Vec<String> {
    let writes = summary.writes_per_block();
    let is_short = summary.duration.is_some_and(|time| time < DAY);
    let lists = [
        (summary.writes == 0, "what writes cost: there is none".to_owned()),
        (
            summary.writes > 0 && writes < SETTLED_WRITES,
            format!(
                "the WAF after a longer time: a block that is written is written {writes:.1} times; \
                 the range is that of the trace as it is and {passes} times over"
            ),
        ),
        (
            summary.present_bytes.is_none(),
            "how full the disk was at the start: the trace does not say".into(),
        ),
        (
            summary.duration.is_none(),
            "TB a day, years and pauses: the trace has no times, or less than a second".into(),
        ),
        (
            is_short,
            format!(
                "other hours of the day: the trace has {:.1}",
                summary.duration.unwrap_or_default().as_secs_f64() / 3600.0
            ),
        ),
        (
            summary.trims == 0,
            "what the guest gives up: no discard was seen (mount -o discard, or fstrim)".into(),
        ),
        (
            summary.accesses > 0,
            "which accesses write: the trace does not tell, and they are taken for reads".into(),
        ),
        (trace.lost > 0, format!("{} requests that the recorder lost", trace.lost)),
        (trace.is_cut, "what came after the end of the file, which is cut".into()),
        (
            options.endurance.is_none(),
            "years: no endurance was given (--endurance 600, in TB)".into(),
        ),
        (
            options.price.is_some() && options.endurance.is_none(),
            "money: a price is divided by years, which need the endurance (--endurance)".into(),
        ),
        (true, "what other disks on the same drive do to it".into()),
    ];
    lists.into_iter().filter(|(is_so, _)| *is_so).map(|(_, text)| text).collect()
}
