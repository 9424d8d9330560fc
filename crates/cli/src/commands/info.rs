//! `flowstone info`

use flowstone_block::{Result, format_size};
use flowstone_formats::inspect;
use flowstone_image::Format;
use flowstone_log::LogInfo;
use flowstone_qcow2::Qcow2Info;
use serde::Serialize;

use super::print_report;
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
    log: Option<LogInfo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    qcow2: Option<Qcow2Info>,
}

pub fn run(args: &ReportArgs) -> Result<()> {
    let format = Format::choose(args.format, &args.image)?;
    let found = inspect(&args.image, format)?;
    let report = Report {
        image: args.image.display().to_string(),
        format: format.name(),
        virtual_bytes: found.space.virtual_bytes,
        live_bytes: found.space.live_bytes,
        allocated_bytes: found.space.allocated_bytes,
        dead_bytes: found.space.dead_bytes,
        log: found.log,
        qcow2: found.qcow2,
    };
    print_report(&report, args.json, print);
    Ok(())
}

fn print(report: &Report) {
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
}

/// Describes the erase unit, its source, and whether a raw image is gentler on such a drive.
fn erase_unit_of(log: &LogInfo) -> String {
    let (Some(bytes), Some(from)) = (log.erase_unit_bytes, log.erase_unit_from) else {
        return "not known to this image; `convert --erase-unit SIZE` makes one that follows it"
            .into();
    };
    let coarse = match log.is_coarse {
        true => "; a raw image with TRIM is gentler on a drive like this without write streams",
        false => "",
    };
    format!("{} (by {from}){coarse}", format_size(bytes))
}

fn print_log(log: &LogInfo) {
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

fn print_qcow2(qcow2: &Qcow2Info) {
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
