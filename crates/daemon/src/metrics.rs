//! `GET /metrics`: metrics of all disks in Prometheus' text format.
//!
//! No file of a disk is accessed and no lock is taken under which a disk works: a host that does
//! not answer delays no other disk's metrics.

mod disk;
mod families;
mod process;

use std::collections::BTreeMap;

use flowstone_runner::Snapshot;
use prometheus::proto::{
    Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType, Summary,
};
use prometheus::{Encoder, TextEncoder};

use self::families::{ALL, BUILD_INFO, CACHE_TARGET, Family};
use crate::config::MetricsBuckets;
use crate::disks::Disks;

/// Content type of the text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Binary logarithms of the bucket ends in nanoseconds, which are exact ends of
/// [`Histogram`](flowstone_runner::Histogram) buckets.
const ENDS: [u32; 13] = [10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32, 33];

/// Returns the text of a scrape; `cache_target` is the cache's target size.
pub fn text(disks: &Disks, cache_target: Option<u64>, buckets: MetricsBuckets) -> String {
    let mut families = Families { buckets, ..Families::default() };
    families.add(&BUILD_INFO, &[("version", env!("CARGO_PKG_VERSION"))], 1.0);
    process::collect(&mut families);
    if let Some(bytes) = cache_target {
        families.add(&CACHE_TARGET, &[], bytes as f64);
    }
    disk::collect(disks, &mut families);
    families.text()
}

/// The metrics collected in a scrape.
#[derive(Default)]
struct Families {
    buckets: MetricsBuckets,
    /// Metrics by family name.
    all: BTreeMap<&'static str, Vec<Metric>>,
}

impl Families {
    /// Adds a value of a counter or a gauge.
    fn add(&mut self, family: &Family, labels: &[(&str, &str)], value: f64) {
        let mut metric = Metric::from_label(labels.iter().copied().map(label).collect());
        if family.kind == MetricType::COUNTER {
            let mut counter = Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        } else {
            let mut gauge = Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        }
        self.push(family, metric);
    }

    /// Adds durations with their buckets.
    fn histogram(&mut self, family: &Family, labels: &[(&str, &str)], times: &Snapshot) {
        let bucket = |(end, count): (u64, u64)| {
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(end as f64 / 1e9);
            bucket.set_cumulative_count(count);
            bucket
        };
        let counts: Vec<(u64, u64)> = match self.buckets {
            MetricsBuckets::Coarse => ENDS.map(|log2| (1 << log2, times.count_below(log2))).into(),
            MetricsBuckets::Fine => times.counts_to(ENDS[0], ENDS[ENDS.len() - 1]),
        };
        let mut histogram = Histogram::default();
        histogram.set_bucket(counts.into_iter().map(bucket).collect());
        histogram.set_sample_count(times.count());
        histogram.set_sample_sum(times.sum_s());
        let mut metric = Metric::from_label(labels.iter().copied().map(label).collect());
        metric.set_histogram(histogram);
        self.push(family, metric);
    }

    /// Adds durations without buckets.
    fn summary(&mut self, family: &Family, labels: &[(&str, &str)], times: &Snapshot) {
        let mut summary = Summary::default();
        summary.set_sample_count(times.count());
        summary.set_sample_sum(times.sum_s());
        let mut metric = Metric::from_label(labels.iter().copied().map(label).collect());
        metric.set_summary(summary);
        self.push(family, metric);
    }

    fn push(&mut self, family: &Family, metric: Metric) {
        self.all.entry(family.name).or_default().push(metric);
    }

    fn text(mut self) -> String {
        let family = |family: &&Family| {
            let mut all = MetricFamily::default();
            all.set_name(family.name.to_owned());
            all.set_help(family.help.to_owned());
            all.set_field_type(family.kind);
            all.set_metric(self.all.remove(family.name)?);
            Some(all)
        };
        let all: Vec<MetricFamily> = ALL.iter().filter_map(family).collect();
        debug_assert!(self.all.is_empty(), "not in the list: {:?}", self.all.keys());
        let mut text = Vec::new();
        TextEncoder::new().encode(&all, &mut text).expect("no family is empty");
        String::from_utf8(text).expect("names are text")
    }
}

fn label((name, value): (&str, &str)) -> LabelPair {
    let mut pair = LabelPair::default();
    pair.set_name(name.to_owned());
    pair.set_value(value.to_owned());
    pair
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_every_name_and_no_other() {
        let page = include_str!("../../../docs/metrics.md");
        let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| `")).collect();
        let row = |it: &&Family| {
            let kind = format!("{:?}", it.kind).to_lowercase();
            format!("| `{}` | {kind} | {} | {} |", it.name, it.labels, it.help)
        };
        assert_eq!(rows, ALL.iter().map(row).collect::<Vec<_>>());
    }

    #[test]
    fn a_daemon_without_disks_has_figures_too() {
        let text = text(&Disks::default(), Some(1 << 20), MetricsBuckets::default());
        for line in ["flowstone_build_info{version=", "flowstone_cache_target_bytes 1048576\n"] {
            assert!(text.contains(line), "{text}");
        }
    }
}
