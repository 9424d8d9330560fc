//! The figures of a load.

use flowstone_testkit::load::LoadReport;

/// The figures of one measurement, by name; those that are not finite are absent.
pub type Figures = Vec<(&'static str, f64)>;

/// Requests per second.
pub const IOPS: &str = "iops";
/// Median latency.
pub const P50_US: &str = "p50_us";
/// 99th percentile of latency.
pub const P99_US: &str = "p99_us";
/// CPU time of the server per request.
pub const CPU_US: &str = "server_us_per_io";
/// Kicks per request.
pub const KICKS_PER_IO: &str = "kicks_per_io";
/// Calls per request.
pub const CALLS_PER_IO: &str = "calls_per_io";
/// Longest time without a completion.
pub const GAP_MS: &str = "longest_gap_ms";

/// Returns the figures of a load.
pub fn figures(report: &LoadReport) -> Figures {
    vec![
        (IOPS, report.iops),
        (P50_US, report.latency.p50_us),
        (P99_US, report.latency.p99_us),
        (CPU_US, report.server_us_per_io.unwrap_or(f64::NAN)),
        (KICKS_PER_IO, report.kicks_per_io),
        (CALLS_PER_IO, report.calls_per_io),
        (GAP_MS, report.longest_gap_ms),
    ]
}
