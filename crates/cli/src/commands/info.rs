//! `flowstone info`

use std::process::ExitCode;

use flowstone_block::{Result, format_size};
use flowstone_formats::inspect;
use flowstone_image::Format;
use flowstone_log::LogInfo;
use flowstone_qcow2::Qcow2Info;
use serde::Serialize;

use super::{only_print_from_now_on, print_json};
use crate::args::ReportArgs;
use crate::output::out;

/// The stable JSON format.
#[derive(Serialize)]
struct Report {
    image: String,
    format: &'static str,
    virtual_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    live_bytes: Option<u64>,
    allocated_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    dead_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    log: Option<LogReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    qcow2: Option<Qcow2Report>,
}

/// Properties of a qcow2 image.
#[derive(Serialize)]
struct Qcow2Report {
    version: u32,
    cluster_bytes: u64,
    backing: Option<String>,
    backing_format: Option<String>,
    snapshots: u32,
    corrupt: bool,
}

impl From<&Qcow2Info> for Qcow2Report {
    fn from(qcow2: &Qcow2Info) -> Self {
        Self {
            version: qcow2.version,
            cluster_bytes: qcow2.cluster_bytes,
            backing: qcow2.backing.clone(),
            backing_format: qcow2.backing_format.clone(),
            snapshots: qcow2.snapshots,
            corrupt: qcow2.corrupt,
        }
    }
}

/// Properties of a log image, at its newest checkpoint.
#[derive(Serialize)]
struct LogReport {
    segment_bytes: u64,
    erase_unit_bytes: Option<u64>,
    /// `option`, `device` or `default`.
    erase_unit_from: Option<&'static str>,
    streams: &'static str,
    reserve_percent: u32,
    segments_limit: u32,
    segments_used: u32,
    segments_free: u32,
    live_bytes: u64,
    appended_blocks: u64,
    guest_blocks: u64,
    write_amplification: Option<f64>,
    relocated_share: Option<f64>,
    map_share: Option<f64>,
    checkpoint_age_s: Option<u64>,
    clean: bool,
    generation: u64,
}

impl From<&LogInfo> for LogReport {
    fn from(log: &LogInfo) -> Self {
        Self {
            segment_bytes: log.segment_bytes,
            erase_unit_bytes: log.erase_unit.map(|unit| unit.bytes),
            erase_unit_from: log.erase_unit.map(|unit| unit.source.name()),
            streams: log.streams.name(),
            reserve_percent: log.reserve_percent,
            segments_limit: log.segments_limit,
            segments_used: log.segments_used,
            segments_free: log.segments_limit.saturating_sub(log.segments_used),
            live_bytes: log.live_bytes,
            appended_blocks: log.appended_blocks,
            guest_blocks: log.guest_blocks,
            write_amplification: log.write_amplification(),
            relocated_share: log.relocated_share(),
            map_share: log.map_share(),
            checkpoint_age_s: log.checkpoint_age.map(|age| age.as_secs()),
            clean: log.clean,
            generation: log.generation,
        }
    }
}

pub fn run(args: &ReportArgs) -> Result<ExitCode> {
    let format = Format::choose(args.format, &args.image)?;
    let found = inspect(&args.image, format)?;
    let report = Report {
        image: args.image.display().to_string(),
        format: format.name(),
        virtual_bytes: found.space.virtual_bytes,
        live_bytes: found.space.live_bytes,
        allocated_bytes: found.space.allocated_bytes,
        dead_bytes: found.space.dead_bytes,
        log: found.log.as_ref().map(LogReport::from),
        qcow2: found.qcow2.as_ref().map(Qcow2Report::from),
    };
    only_print_from_now_on();
    if args.json {
        print_json(&report);
        return Ok(ExitCode::SUCCESS);
    }
    out!("image       {}", report.image);
    out!("format      {}", report.format);
    out!("size        {}", with_bytes(report.virtual_bytes));
    if let Some(live) = report.live_bytes {
        out!("live        {}", with_bytes(live));
    }
    out!("on host     {}", with_bytes(report.allocated_bytes));
    if let Some(dead) = report.dead_bytes {
        out!("dead        at most {}", with_bytes(dead));
    }
    report.log.iter().for_each(print_log);
    report.qcow2.iter().for_each(print_qcow2);
    Ok(ExitCode::SUCCESS)
}

/// Describes the erase unit, its source, and whether segments are small for it.
fn erase_unit_of(log: &LogReport) -> String {
    let (Some(bytes), Some(from)) = (log.erase_unit_bytes, log.erase_unit_from) else {
        return "not known to this image; `convert --erase-unit SIZE` makes one that follows it"
            .into();
    };
    let small = match log.segment_bytes < 4 * bytes {
        true => "; segments are smaller than four of them: a raw image with TRIM is gentler here",
        false => "",
    };
    format!("{} (by {from}){small}", format_size(bytes))
}

fn print_log(log: &LogReport) {
    out!(
        "segments    {} used, {} free, of {}; {} each",
        log.segments_used,
        log.segments_free,
        log.segments_limit,
        format_size(log.segment_bytes),
    );
    out!("erase unit  {}", erase_unit_of(log));
    out!("layout      streams: {}, reserve: {} %", log.streams, log.reserve_percent);
    if let Some(amplification) = log.write_amplification {
        let percent = |share: Option<f64>| 100.0 * share.unwrap_or(0.0);
        out!(
            "written     {amplification:.2} blocks for each block of the guest; {:.1} % copies, \
             {:.1} % map",
            percent(log.relocated_share),
            percent(log.map_share),
        );
    }
    let age = log.checkpoint_age_s.map_or("none yet".into(), |age| format!("{age} s ago"));
    let state = if log.clean { "closed in order" } else { "in use, or not closed in order" };
    out!("checkpoint  {age}, generation {}; {state}", log.generation);
}

fn print_qcow2(qcow2: &Qcow2Report) {
    out!("clusters    {}, format version {}", format_size(qcow2.cluster_bytes), qcow2.version);
    if let Some(backing) = &qcow2.backing {
        // The text comes from the image and must not reach a terminal unescaped.
        let format = qcow2.backing_format.as_deref().unwrap_or("of unknown format");
        out!("backing     {} ({})", backing.escape_debug(), format.escape_debug());
    }
    if qcow2.snapshots > 0 {
        out!("snapshots   {}", qcow2.snapshots);
    }
    if qcow2.corrupt {
        out!("state       marked as damaged");
    }
}

fn with_bytes(bytes: u64) -> String {
    format!("{} ({bytes} bytes)", format_size(bytes))
}
