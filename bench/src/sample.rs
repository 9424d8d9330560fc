//! One measurement, and the summary of several.
//!
//! The median is reported; the spread of the rate is shown beside it, because a smaller difference
//! is not significant.

use flowstone_testkit::load::LoadReport;
use serde::Serialize;

use crate::experiment::median;

/// One server at one point in one round.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    /// Requests per second.
    pub iops: f64,
    /// Median latency.
    pub p50_us: f64,
    /// 99th percentile of latency.
    pub p99_us: f64,
    /// CPU time of the server (or of fio itself) per request.
    pub server_us_per_io: f64,
    /// Kicks per request; absent without a ring.
    pub kicks_per_io: Option<f64>,
    /// Calls per request; absent without a ring.
    pub calls_per_io: Option<f64>,
    /// CPU share used by other processes meanwhile; filled in after the measurement.
    pub others_percent: f64,
}

impl From<&LoadReport> for Sample {
    fn from(report: &LoadReport) -> Self {
        Sample {
            iops: report.iops,
            p50_us: report.latency.p50_us,
            p99_us: report.latency.p99_us,
            server_us_per_io: report.server_us_per_io.unwrap_or(f64::NAN),
            kicks_per_io: Some(report.kicks_per_io),
            calls_per_io: Some(report.calls_per_io),
            others_percent: 0.0,
        }
    }
}

/// Medians of several samples.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Number of samples.
    pub samples: usize,
    /// Median rate.
    pub iops: f64,
    /// Lowest rate.
    pub iops_min: f64,
    /// Highest rate.
    pub iops_max: f64,
    /// Median of the median latencies.
    pub p50_us: f64,
    /// Median of the 99th percentiles.
    pub p99_us: f64,
    /// Median CPU time per request.
    pub server_us_per_io: f64,
    /// Median kicks per request.
    pub kicks_per_io: Option<f64>,
    /// Median calls per request.
    pub calls_per_io: Option<f64>,
    /// Largest CPU share used by other processes in any sample.
    pub others_percent_max: f64,
}

impl Summary {
    /// Summarises samples; `None` if there are none.
    pub fn of(samples: &[Sample]) -> Option<Summary> {
        let all = |field: fn(&Sample) -> f64| samples.iter().map(field).collect::<Vec<_>>();
        let some = |field: fn(&Sample) -> Option<f64>| {
            samples.iter().map(field).collect::<Option<Vec<_>>>().and_then(median)
        };
        let iops = all(|s| s.iops);
        Some(Summary {
            samples: samples.len(),
            iops_min: iops.iter().copied().reduce(f64::min)?,
            iops_max: iops.iter().copied().reduce(f64::max)?,
            iops: median(iops)?,
            p50_us: median(all(|s| s.p50_us))?,
            p99_us: median(all(|s| s.p99_us))?,
            server_us_per_io: median(all(|s| s.server_us_per_io))?,
            kicks_per_io: some(|s| s.kicks_per_io),
            calls_per_io: some(|s| s.calls_per_io),
            others_percent_max: all(|s| s.others_percent).into_iter().fold(0.0, f64::max),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(iops: f64) -> Sample {
        let (kicks_per_io, calls_per_io) = (Some(1.0), None);
        let (p50_us, p99_us, server_us_per_io, others_percent) = (1.0, 2.0, 3.0, 0.0);
        Sample {
            iops,
            p50_us,
            p99_us,
            server_us_per_io,
            kicks_per_io,
            calls_per_io,
            others_percent,
        }
    }

    #[test]
    fn median_is_the_middle_and_the_spread_is_kept() {
        let summary = Summary::of(&[sample(30.0), sample(10.0), sample(20.0)]).unwrap();
        assert_eq!((summary.iops, summary.iops_min, summary.iops_max), (20.0, 10.0, 30.0));
        assert_eq!((summary.kicks_per_io, summary.calls_per_io), (Some(1.0), None));
    }

    #[test]
    fn an_even_number_has_a_median_in_between() {
        assert_eq!(Summary::of(&[sample(10.0), sample(20.0)]).unwrap().iops, 15.0);
    }

    #[test]
    fn nothing_has_no_summary() {
        assert!(Summary::of(&[]).is_none());
    }
}
