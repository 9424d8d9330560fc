//! `flowstone replay`

use std::process::ExitCode;

use flowstone_block::{Error, Result, format_size};
use flowstone_replay::{Load, ReplayOptions, Report, SsdOptions, Timing, read_trace, replay};

use super::{only_print_from_now_on, print_json};
use crate::args::{Replay, Streams, WhenMade};
use crate::progress::bar;

pub fn run(args: &Replay) -> Result<ExitCode> {
    let refused = |why: String| Error::invalid("replay", why, "see flowstone replay --help");
    let load = match (&args.trace, args.generate) {
        (Some(path), _) => {
            let trace = read_trace(path);
            Load::Trace(trace.map_err(|error| refused(format!("{error:#}")))?)
        }
        (None, Some(generator)) => Load::Generated(generator, args.ops),
        (None, None) => return Err(refused("there is no --trace and no --generate".into())),
    };
    let options = ReplayOptions {
        load,
        size: args.size,
        fill: args.fill,
        format: args.format,
        segment_bytes: args.log.segment,
        reserve_percent: args.log.reserve,
        split_streams: args.log.streams == Some(Streams::Split),
        ssd: SsdOptions {
            trim: args.trim.unwrap_or(args.ssd.trim),
            is_aged: args.aged,
            ..args.ssd
        },
        iodepth: args.iodepth,
        timing: match args.timing {
            WhenMade::Asap => Timing::Asap,
            WhenMade::Trace => Timing::Trace,
        },
        warmup: args.warmup,
        passes: args.passes,
        seed: args.seed,
    };
    let bar = bar("replaying");
    let report = replay(&options, &mut |done, all| {
        bar.set_length(all);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let report = report.map_err(|error| refused(format!("{error:#}")))?;
    only_print_from_now_on();
    if args.json {
        print_json(&report);
    } else {
        print(&report);
    }
    Ok(ExitCode::SUCCESS)
}

fn print(report: &Report) {
    let rows = [
        ("disk", format!("{}, {} image", format_size(report.disk_bytes), report.format)),
        ("drive", format!("{} for the host", format_size(report.drive_bytes))),
        ("requests", report.requests.to_string()),
        (
            "",
            format!(
                "{} reads, {} writes ({:.0} % sequential), {} flushes, {} discards",
                report.reads,
                report.writes,
                report.sequential_percent,
                report.flushes,
                report.discards
            ),
        ),
        ("written, 4 KiB", format!("{:.0} by the guest", report.guest_blocks)),
        ("", format!("{:.0} to the file, {} host WAF", report.host_blocks, ratio(report.host_waf))),
        (
            "",
            format!(
                "{:.0} by the drive, {} device WAF",
                report.device_blocks,
                ratio(report.device_waf)
            ),
        ),
        ("total WAF", ratio(report.total_waf)),
        (
            "erases",
            format!(
                "{}; of a block, {:.1} on average, {} at most",
                report.erases, report.erases_mean, report.erases_most
            ),
        ),
        ("punches", report.punches.to_string()),
        (
            "time",
            format!(
                "{:.1} s of the drive's work in {:.1} s",
                report.device_seconds, report.seconds
            ),
        ),
    ];
    for (name, value) in rows {
        println!("{name:<16} {value}");
    }
}

fn ratio(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "no".into(), |ratio| format!("{ratio:.3}"))
}
