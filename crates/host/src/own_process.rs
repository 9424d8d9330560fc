//! The process of the daemon itself, from /proc.

use std::fs;

use flowstone_block::{Metric, MetricKind};
use flowstone_memory::reading::number_after;
use rustix::process::{Resource, getrlimit};

use crate::peer::stat_field;

/// Kernel ticks per second (`USER_HZ`; the same on all supported hosts).
const TICKS: f64 = 100.0;

/// What the kernel says of this process.
pub struct OwnProcess {
    status: String,
    stat: String,
}

impl OwnProcess {
    /// Metrics of a process.
    pub const METRICS: &[Metric<Self>] = &[
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
            |it| Some(it.resident_bytes()? as f64),
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

    /// Reads the state of this process. What cannot be read is unknown.
    pub fn look() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        Self { status: read("/proc/self/status"), stat: read("/proc/self/stat") }
    }

    /// Returns its resident memory, that shared with guests included.
    pub fn resident_bytes(&self) -> Option<u64> {
        Some(number_after(&self.status, "VmRSS:")? << 10)
    }

    /// Returns its resident memory that it may share with others.
    pub fn shared_resident_bytes(&self) -> Option<u64> {
        Some(number_after(&self.status, "RssShmem:")? << 10)
    }

    /// Returns a time that the kernel counts in ticks.
    fn seconds(&self, field: usize) -> Option<f64> {
        Some(stat_field(&self.stat, field)? as f64 / TICKS)
    }
}
