//! Metrics of a stage. Each stands once, in the file of its counter: what users see of it, and how
//! it is read. The daemon adds the label of the disk and writes the page.

/// Kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A sum that only grows.
    Counter,
    /// A value that may also fall.
    Gauge,
    /// Durations with buckets.
    Histogram,
    /// Durations without buckets.
    Summary,
}

/// The metrics of one name.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// Ends in the unit, seconds or bytes, and then, for a counter, in `total`.
    pub name: &'static str,
    /// Kind of all of them.
    pub kind: MetricKind,
    /// Labels that tell them apart, besides that of the disk.
    pub labels: &'static str,
    /// Their meaning.
    pub help: &'static str,
}

/// A metric that is read from an `S`; its values are numbers, or distributions of durations.
pub struct Metric<S: ?Sized, V = f64> {
    /// What users see of it.
    pub family: Family,
    read: Read<S, V>,
}

enum Read<S: ?Sized, V> {
    One(fn(&S) -> V),
    Maybe(fn(&S) -> Option<V>),
    Each(fn(&S, &mut Add<'_, V>)),
}

/// Takes a value of a metric, with that of its label.
type Add<'a, V = f64> = dyn FnMut(&str, V) + 'a;

impl<S: ?Sized, V> Metric<S, V> {
    const fn new(
        kind: MetricKind,
        name: &'static str,
        labels: &'static str,
        help: &'static str,
        read: Read<S, V>,
    ) -> Self {
        Self { family: Family { name, kind, labels, help }, read }
    }

    /// A counter of one value.
    pub const fn counter(name: &'static str, help: &'static str, read: fn(&S) -> V) -> Self {
        Self::new(MetricKind::Counter, name, "", help, Read::One(read))
    }

    /// A gauge of one value.
    pub const fn gauge(name: &'static str, help: &'static str, read: fn(&S) -> V) -> Self {
        Self::new(MetricKind::Gauge, name, "", help, Read::One(read))
    }

    /// A metric whose value may be unknown.
    pub const fn maybe(
        kind: MetricKind,
        name: &'static str,
        help: &'static str,
        read: fn(&S) -> Option<V>,
    ) -> Self {
        Self::new(kind, name, "", help, Read::Maybe(read))
    }

    /// A metric with a value for each value of `label`: `read` passes on both.
    pub const fn each(
        kind: MetricKind,
        name: &'static str,
        label: &'static str,
        help: &'static str,
        read: fn(&S, &mut Add<'_, V>),
    ) -> Self {
        Self::new(kind, name, label, help, Read::Each(read))
    }

    /// Passes on each value that `of` has now, with that of the label.
    pub fn read(&self, of: &S, add: &mut Add<'_, V>) {
        match self.read {
            Read::One(read) => add("", read(of)),
            Read::Maybe(read) => read(of).into_iter().for_each(|value| add("", value)),
            Read::Each(read) => read(of, add),
        }
    }
}
