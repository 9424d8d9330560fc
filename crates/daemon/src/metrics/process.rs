//! Metrics of the process itself, from /proc.

use std::fs;

use flowstone_block::{Metric, MetricKind};
use flowstone_host::stat_field;
use flowstone_memory::reading::number_after;
use rustix::process::{Resource, getrlimit};

use crate::families::Families;

/// Kernel ticks per second (`USER_HZ`; the same on all supported hosts).
const TICKS: f64 = 100.0;

/// Files of the process in /proc.
struct Process {
    status: String,
    stat: String,
}

const METRICS: &[Metric<Process>] = &[
    Metric::maybe(
        MetricKind::Gauge,
        "process_start_time_seconds",
        "When the daemon started, since 1970",
        |it| {
            let host = fs::read_to_string("/proc/stat").ok()?;
            Some(number_after(&host, "btime ")? as f64 + it.seconds(22)?)
        },
    ),
    Metric::maybe(
        MetricKind::Counter,
        "process_cpu_seconds_total",
        "CPU time of the daemon",
        |it| Some(it.seconds(14)? + it.seconds(15)?),
    ),
    Metric::maybe(
        MetricKind::Gauge,
        "process_resident_memory_bytes",
        "Resident memory of the daemon, including guest pages that it has touched",
        |it| Some((number_after(&it.status, "VmRSS:")? << 10) as f64),
    ),
    Metric::maybe(MetricKind::Gauge, "process_open_fds", "Open files of the daemon", |_| {
        Some(fs::read_dir("/proc/self/fd").ok()?.count() as f64)
    }),
    Metric::maybe(MetricKind::Gauge, "process_max_fds", "Limit of open files", |_| {
        Some(getrlimit(Resource::Nofile).current? as f64)
    }),
    Metric::maybe(MetricKind::Gauge, "process_threads", "Threads of the daemon", |it| {
        Some(number_after(&it.status, "Threads:")? as f64)
    }),
];

impl Process {
    /// Returns a time that the kernel counts in ticks.
    fn seconds(&self, field: usize) -> Option<f64> {
        Some(stat_field(&self.stat, field)? as f64 / TICKS)
    }
}

pub fn collect(families: &mut Families) {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let process = Process { status: read("/proc/self/status"), stat: read("/proc/self/stat") };
    families.read(METRICS, Some(&process));
}
