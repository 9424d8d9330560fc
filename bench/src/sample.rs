//! One measurement, and the summary of several.
//!
//! The median is reported; the spread of the rate is shown beside it, because a smaller difference
//! is not significant.

use flowstone_testkit::load::LoadReport;
use serde::Serialize;

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

/// Returns the middle value, or the mean of the middle two.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}

/// Formats the median of some values with its 95 % confidence interval by the sign test, which
/// assumes no distribution.
pub fn interval(mut values: Vec<f64>) -> String {
    values.sort_by(f64::total_cmp);
    let middle = median(values.clone()).unwrap_or(f64::NAN);
    match outside(values.len()) {
        Some(cut) => {
            let (low, high) = (values[cut], values[values.len() - 1 - cut]);
            format!("{middle:.3} ({low:.3}-{high:.3})")
        }
        None => format!("{middle:.3}"),
    }
}

/// Returns the number of values outside of the interval at each end, so that the true median is
/// below it in at most 2.5 % of all runs. `None` if there are too few values for an interval.
fn outside(count: usize) -> Option<usize> {
    let mut chance = 0.5_f64.powi(count as i32);
    let mut sum = chance;
    let mut cut = None;
    for below in 0..count {
        if sum > 0.025 {
            break;
        }
        cut = Some(below);
        chance *= (count - below) as f64 / (below + 1) as f64;
        sum += chance;
    }
    cut
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

    /// From the table of the sign test.
    #[test]
    fn the_interval_leaves_out_as_many_as_the_sign_test_says() {
        for (count, cut) in [(6, 0), (9, 1), (12, 2), (15, 3), (20, 5), (25, 7)] {
            assert_eq!(outside(count), Some(cut), "{count}");
        }
        assert_eq!((outside(0), outside(5)), (None, None));
        let values = (1..=15).map(f64::from).rev().collect();
        assert_eq!(interval(values), "8.000 (4.000-12.000)");
    }

    #[test]
    fn nothing_has_no_summary() {
        assert!(Summary::of(&[]).is_none());
    }
}
