//! The metrics of a scrape, in Prometheus' text format.

use std::collections::BTreeMap;

use clap::ValueEnum;
use flowstone_block::{Family, Metric, MetricKind};
use flowstone_runner::Snapshot;
use prometheus::proto::{
    self, Bucket, Counter, Gauge, Histogram, LabelPair, MetricFamily, Summary,
};
use prometheus::{Encoder, TextEncoder};

/// Binary logarithms of the bucket ends in nanoseconds, which are exact ends of
/// [`Histogram`](flowstone_runner::Histogram) buckets.
const ENDS: [u32; 13] = [10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32, 33];

/// Buckets of the histograms of `GET /metrics`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum MetricsBuckets {
    /// One bucket for every second power of two of nanoseconds
    #[default]
    Coarse,
    /// All buckets of the daemon: eight for each power of two
    Fine,
}

/// The metrics collected in a scrape.
#[derive(Default)]
pub struct Families {
    buckets: MetricsBuckets,
    /// Label of the metrics that are added: the disk they belong to.
    disk: Option<String>,
    /// All families, in the order in which they came, and whether they belong to a disk.
    order: Vec<(Family, bool)>,
    /// Metrics by family name.
    all: BTreeMap<&'static str, Vec<proto::Metric>>,
}

impl Families {
    /// Makes the metrics of a scrape, whose durations have these buckets.
    pub fn new(buckets: MetricsBuckets) -> Self {
        Self { buckets, ..Self::default() }
    }

    /// Sets the disk that the metrics added from now on belong to.
    pub fn set_disk(&mut self, name: Option<&str>) {
        self.disk = name.map(str::to_owned);
    }

    /// Adds numbers read from `of`; without it, their families.
    pub fn read<S: ?Sized>(&mut self, metrics: &[Metric<S>], of: Option<&S>) {
        for metric in metrics {
            let family = &metric.family;
            self.list(family);
            let mut add = |which: &str, value| self.add(family, &[(family.labels, which)], value);
            of.into_iter().for_each(|of| metric.read(of, &mut add));
        }
    }

    /// Adds durations read from `of`; without it, their families.
    pub fn read_durations<S: ?Sized>(&mut self, metrics: &[Metric<S, Snapshot>], of: Option<&S>) {
        for metric in metrics {
            let family = &metric.family;
            self.list(family);
            let mut add = |which: &str, times: Snapshot| {
                let mut value = proto::Metric::default();
                if family.kind == MetricKind::Histogram {
                    value.set_histogram(self.histogram(&times));
                } else {
                    value.set_summary(summary(&times));
                }
                self.push(family, &[(family.labels, which)], value);
            };
            of.into_iter().for_each(|of| metric.read(of, &mut add));
        }
    }

    /// Adds a number.
    pub fn add(&mut self, family: &Family, labels: &[(&str, &str)], number: f64) {
        let mut value = proto::Metric::default();
        if family.kind == MetricKind::Counter {
            let mut counter = Counter::default();
            counter.set_value(number);
            value.set_counter(counter);
        } else {
            let mut gauge = Gauge::default();
            gauge.set_value(number);
            value.set_gauge(gauge);
        }
        self.push(family, labels, value);
    }

    /// Adds a family, which may stay empty; returns its metrics.
    pub fn list(&mut self, family: &Family) -> &mut Vec<proto::Metric> {
        let is_of_disk = self.disk.is_some();
        self.all.entry(family.name).or_insert_with(|| {
            self.order.push((*family, is_of_disk));
            Vec::new()
        })
    }

    fn push(&mut self, family: &Family, labels: &[(&str, &str)], mut value: proto::Metric) {
        let disk = self.disk.as_deref().map(|disk| label("disk", disk));
        let others = labels.iter().filter(|(name, _)| !name.is_empty());
        let labels = others.map(|(name, value)| label(name, value));
        value.set_label(disk.into_iter().chain(labels).collect());
        self.list(family).push(value);
    }

    fn histogram(&self, times: &Snapshot) -> Histogram {
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
        histogram
    }

    /// Returns the text of the scrape.
    pub fn text(mut self) -> String {
        let family = |(family, _): &(Family, bool)| {
            let metrics = self.all.remove(family.name).filter(|metrics| !metrics.is_empty())?;
            let mut all = MetricFamily::default();
            all.set_name(family.name.to_owned());
            all.set_help(family.help.to_owned());
            all.set_field_type(match family.kind {
                MetricKind::Counter => proto::MetricType::COUNTER,
                MetricKind::Gauge => proto::MetricType::GAUGE,
                MetricKind::Histogram => proto::MetricType::HISTOGRAM,
                MetricKind::Summary => proto::MetricType::SUMMARY,
            });
            all.set_metric(metrics);
            Some(all)
        };
        let all: Vec<MetricFamily> = self.order.iter().filter_map(family).collect();
        let mut text = Vec::new();
        TextEncoder::new().encode(&all, &mut text).expect("no family is empty");
        String::from_utf8(text).expect("names are text")
    }

    /// Returns the families as rows of docs/metrics.md.
    #[cfg(test)]
    pub fn rows(&self) -> Vec<String> {
        let row = |(it, is_of_disk): &(Family, bool)| {
            let kind = format!("{:?}", it.kind).to_lowercase();
            let labels = [if *is_of_disk { "disk" } else { "" }, it.labels];
            let labels: Vec<&str> = labels.into_iter().filter(|it| !it.is_empty()).collect();
            format!("| `{}` | {kind} | {} | {} |", it.name, labels.join(", "), it.help)
        };
        self.order.iter().map(row).collect()
    }
}

fn summary(times: &Snapshot) -> Summary {
    let mut summary = Summary::default();
    summary.set_sample_count(times.count());
    summary.set_sample_sum(times.sum_s());
    summary
}

fn label(name: &str, value: &str) -> LabelPair {
    let mut pair = LabelPair::default();
    pair.set_name(name.to_owned());
    pair.set_value(value.to_owned());
    pair
}
