//! The tables of the comparison, as Markdown.

use std::fmt::Write;

use crate::args::CompareArgs;
use crate::compare::{IdleResult, PointResult, ServerResult};
use crate::experiment::interval;
use crate::host::Host;
use crate::noise::LIMIT_PERCENT;
use crate::point::Backend;
use crate::server::Server;
use crate::size::thousands;

/// The input of a report.
pub struct Report<'a> {
    /// The options of the run.
    pub args: &'a CompareArgs,
    /// The host of the run.
    pub host: &'a Host,
    /// Results under load.
    pub points: &'a [PointResult],
    /// Results of idle disks.
    pub idle: &'a [IdleResult],
}

/// Renders the whole report.
pub fn render(report: &Report<'_>) -> String {
    let mut text = preamble(report);
    let headings = [
        (Backend::Null, "Null backend, client polls"),
        (Backend::Tmpfs, "Raw file on tmpfs, page cache, client polls"),
        (Backend::Disk, "Raw file on a disk, O_DIRECT, client sleeps"),
        (
            Backend::Warm,
            "The same, read before: in the cache (O_DIRECT) or in the page cache; client polls",
        ),
        (Backend::NewQcow2, "New qcow2 image on a disk, O_DIRECT, client sleeps"),
        (
            Backend::NewLog,
            "New log image with room, nothing is cleaned: a burst; O_DIRECT, client sleeps",
        ),
        (
            Backend::SteadyLog,
            "Full log image, overwritten four times at random: cleaning keeps pace; O_DIRECT, client sleeps",
        ),
    ];
    for (backend, heading) in headings {
        let points: Vec<_> = report.points.iter().filter(|p| p.point.backend == backend).collect();
        if !points.is_empty() {
            line(&mut text, &format!("\n### {heading}\n"));
            load_table(&mut text, &points);
        }
    }
    if !report.idle.is_empty() {
        line(&mut text, "\n### Idle, 8 connected disks in one daemon\n");
        idle_table(&mut text, report.idle);
    }
    text
}

fn preamble(report: &Report<'_>) -> String {
    let Report { args, host, .. } = report;
    let mut text = String::new();
    let paragraphs = [
        host.sentence(),
        format!(
            "Server on CPU {}, client on CPU {} (one thread), queue size 128; plain fio is one \
             io_uring job on CPU {}, without a server, and its us/IO is its own CPU. {} rounds \
             of {} s a point, servers in turn; medians, rates with (min-max). Ratios are those \
             of the rates of a round, with the interval that holds the true one in 95 % of all runs \
             (of 6 rounds and more); QSD is its better engine at that point. \"Noisy\" is a point during which others used \
             that share of the machine: do not trust it.",
            args.place.server_cpu,
            args.place.client_cpu,
            args.place.client_cpu,
            args.rounds,
            args.runtime
        ),
        match &args.device {
            Some(device) => format!("Disk: {}, {}.", device.display(), host.device),
            None => format!("Disk image: {} MiB, {}.", args.file_size >> 20, host.device),
        },
    ];
    paragraphs.iter().for_each(|paragraph| line(&mut text, &format!("{paragraph}\n")));
    for (program, version) in &host.versions {
        line(&mut text, &format!("- {program}: {version}"));
    }
    text
}

fn load_table(text: &mut String, points: &[&PointResult]) {
    line(
        text,
        "| point | server | IOPS median (min-max) | p50 us | p99 us | server CPU us/IO | \
         kicks/IO | calls/IO | vs QSD | vs fio | vs our raw |",
    );
    line(text, "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
    for point in points {
        for result in &point.servers {
            line(text, &load_row(point, result));
        }
    }
}

fn ratio(result: &ServerResult, to: Option<&ServerResult>) -> String {
    to.map_or("-".into(), |to| interval(result.ratios(to, |sample| sample.iops)))
}

fn load_row(point: &PointResult, result: &ServerResult) -> String {
    let title = &point.point.title;
    let Some(summary) = &result.summary else {
        let reason = match &result.skipped {
            Some(reason) => format!("skipped: {reason}"),
            None => format!("failed: {}", result.failures.join("; ")),
        };
        return format!("| {title} | {} | {reason} | | | | | | | | |", result.name);
    };
    let count = |count: Option<f64>| count.map_or("-".into(), |count| format!("{count:.3}"));
    let mut remarks = String::new();
    if !result.failures.is_empty() {
        write!(remarks, ", {} failed", result.failures.len()).expect("strings take everything");
    }
    if summary.others_percent_max > LIMIT_PERCENT {
        write!(remarks, ", noisy: {:.0} %", summary.others_percent_max)
            .expect("strings take everything");
    }
    format!(
        "| {title} | {} | {} ({}-{}){remarks} | {:.1} | {:.1} | {:.2} | {} | {} | {} | {} | {} |",
        result.name,
        thousands(summary.iops),
        thousands(summary.iops_min),
        thousands(summary.iops_max),
        summary.p50_us,
        summary.p99_us,
        summary.server_us_per_io,
        count(summary.kicks_per_io),
        count(summary.calls_per_io),
        ratio(result, point.best_qsd()),
        ratio(result, point.best(|server| server == Server::Fio)),
        ratio(result, point.best(|server| server == Server::FlowstoneRaw)),
    )
}

fn idle_table(text: &mut String, results: &[IdleResult]) {
    line(text, "| server | CPU % | wakeups/s | threads | RSS MiB | anonymous MiB |");
    line(text, "|---|---:|---:|---:|---:|---:|");
    for result in results {
        let cells = match &result.sample {
            Some(sample) => format!(
                "{:.3} | {:.1} | {} | {:.1} | {:.1}",
                sample.cpu_percent,
                sample.wakeups_per_second,
                sample.threads,
                sample.rss_mib,
                sample.anonymous_mib
            ),
            None => format!("{} | | | |", result.problem.as_deref().unwrap_or("not measured")),
        };
        line(text, &format!("| {} | {cells} |", result.name));
    }
}

fn line(text: &mut String, content: &str) {
    writeln!(text, "{content}").expect("writing to a string does not fail");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_numbers_are_grouped() {
        assert_eq!(thousands(7.4), "7");
        assert_eq!(thousands(1_234_567.8), "1,234,568");
        assert_eq!(thousands(100_000.0), "100,000");
    }
}
