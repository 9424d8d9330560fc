//! Latency histograms with log-linear buckets: one writer, any readers, without locks.
//!
//! Each power of two nanoseconds is cut into eight buckets, so a percentile read from them is at
//! most 12.5 % too high. Buckets are allocated on first use, for four powers of two at a time:
//! latencies of one kind lie close together, and an idle disk with its histograms must be small.

use std::array::from_fn;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const BUCKETS_PER_OCTAVE_LOG2: u32 = 3;
const BUCKETS_PER_OCTAVE: usize = 1 << BUCKETS_PER_OCTAVE_LOG2;
/// From 2^3 ns up to 2^43 ns, over two hours; longer latencies count in the last bucket.
const OCTAVES: usize = 40;
const BUCKETS: usize = OCTAVES * BUCKETS_PER_OCTAVE;
/// Buckets allocated together: those of four powers of two.
const SPAN: usize = 4 * BUCKETS_PER_OCTAVE;

/// A histogram filled by one queue.
pub struct Histogram {
    spans: [OnceLock<Box<Span>>; BUCKETS / SPAN],
    sum_ns: AtomicU64,
}

type Span = [AtomicU64; SPAN];

/// A copy of a histogram, for percentiles and sums.
#[derive(Clone)]
pub struct Snapshot {
    buckets: Box<[u64; BUCKETS]>,
    sum_ns: u64,
}

/// Adds without a locked instruction: only one thread at a time writes a queue's counters.
#[inline]
pub fn add(counter: &AtomicU64, amount: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
}

/// Converts a duration to nanoseconds, saturating.
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn bucket_of(nanos: u64) -> usize {
    let nanos = nanos.max(BUCKETS_PER_OCTAVE as u64);
    let octave = nanos.ilog2();
    let within = (nanos >> (octave - BUCKETS_PER_OCTAVE_LOG2)) as usize & (BUCKETS_PER_OCTAVE - 1);
    let index = (octave - BUCKETS_PER_OCTAVE_LOG2) as usize * BUCKETS_PER_OCTAVE + within;
    index.min(BUCKETS - 1)
}

/// Returns the upper bound of a bucket, in nanoseconds.
fn upper_end(bucket: usize) -> u64 {
    let octave = (bucket / BUCKETS_PER_OCTAVE) as u32;
    let within = (bucket % BUCKETS_PER_OCTAVE) as u64;
    (BUCKETS_PER_OCTAVE as u64 + within + 1) << octave
}

impl Default for Histogram {
    fn default() -> Self {
        Self { spans: from_fn(|_| OnceLock::new()), sum_ns: AtomicU64::new(0) }
    }
}

impl Histogram {
    /// Counts one latency.
    #[inline]
    pub fn record(&self, latency: Duration) {
        let nanos = nanos(latency);
        let bucket = bucket_of(nanos);
        let span = self.spans[bucket / SPAN].get_or_init(Box::default);
        add(&span[bucket % SPAN], 1);
        add(&self.sum_ns, nanos);
    }

    /// Returns the sum of all latencies, in nanoseconds.
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns.load(Ordering::Relaxed)
    }

    /// Returns a copy of the current counts.
    pub fn snapshot(&self) -> Snapshot {
        let mut copy = Snapshot::default();
        for (to, from) in copy.buckets.chunks_exact_mut(SPAN).zip(&self.spans) {
            let Some(span) = from.get() else { continue };
            to.iter_mut().zip(&**span).for_each(|(to, from)| *to = from.load(Ordering::Relaxed));
        }
        copy.sum_ns = self.sum_ns.load(Ordering::Relaxed);
        copy
    }
}

impl Default for Snapshot {
    fn default() -> Self {
        Self { buckets: Box::new([0; BUCKETS]), sum_ns: 0 }
    }
}

impl Snapshot {
    /// Adds the counts of another snapshot.
    pub fn merge(&mut self, other: &Self) {
        for (to, from) in self.buckets.iter_mut().zip(other.buckets.iter()) {
            *to += from;
        }
        self.sum_ns = self.sum_ns.wrapping_add(other.sum_ns);
    }

    /// Returns the number of latencies counted.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Returns how many latencies are below 2^`log2` nanoseconds, 8 at least. Exact: a bucket ends
    /// there.
    pub fn count_below(&self, log2: u32) -> u64 {
        let octaves = log2.saturating_sub(BUCKETS_PER_OCTAVE_LOG2) as usize;
        self.buckets.iter().take(octaves * BUCKETS_PER_OCTAVE).sum()
    }

    /// Returns the upper bound of each bucket that is not empty, in microseconds, with its count.
    pub fn buckets_us(&self) -> Vec<(f64, u64)> {
        let all = self.buckets.iter().enumerate().filter(|(_, count)| **count > 0);
        all.map(|(bucket, count)| (upper_end(bucket) as f64 / 1000.0, *count)).collect()
    }

    /// Returns cumulative counts: the upper bound of each bucket from 2^`from` to 2^`to`
    /// nanoseconds, in nanoseconds, and how many latencies are below it.
    pub fn counts_to(&self, from: u32, to: u32) -> Vec<(u64, u64)> {
        let octave = |log2: u32| (log2 - BUCKETS_PER_OCTAVE_LOG2) as usize * BUCKETS_PER_OCTAVE;
        let mut below = self.count_below(from);
        let mut counts = vec![(1 << from, below)];
        for bucket in octave(from)..octave(to) {
            below += self.buckets[bucket];
            counts.push((upper_end(bucket), below));
        }
        counts
    }

    /// Returns the sum of all latencies in seconds.
    pub fn sum_s(&self) -> f64 {
        self.sum_ns as f64 / 1e9
    }

    /// Returns the mean in microseconds; 0 if there are none.
    pub fn mean_us(&self) -> f64 {
        match self.count() {
            0 => 0.0,
            count => self.sum_ns as f64 / count as f64 / 1000.0,
        }
    }

    /// Returns the latency in microseconds that `share` of all latencies do not exceed; 0 if there
    /// are none.
    pub fn percentile_us(&self, share: f64) -> f64 {
        let rank = (self.count() as f64 * share).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return upper_end(bucket) as f64 / 1000.0;
            }
        }
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_lies_in_its_bucket() {
        for nanos in [8u64, 9, 15, 16, 17, 1000, 123_456, 1 << 35] {
            let end = upper_end(bucket_of(nanos));
            assert!(nanos < end && end <= nanos + nanos / 8 + 1, "{nanos} is in a bucket to {end}");
        }
        assert_eq!(bucket_of(0), bucket_of(8));
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn counts_below_powers_of_two_are_exact() {
        let histogram = Histogram::default();
        let latencies = [0, 7, 8, 1023, 1024, 1025, 4095, 4096, 1 << 33, u64::MAX >> 8];
        for nanos in latencies {
            histogram.record(Duration::from_nanos(nanos));
        }
        let snapshot = histogram.snapshot();
        for log2 in [4, 10, 12, 33, 34] {
            let below = latencies.iter().filter(|nanos| **nanos < 1 << log2).count() as u64;
            assert_eq!(snapshot.count_below(log2), below, "{log2}");
        }
        let counts = snapshot.counts_to(10, 33);
        assert_eq!(counts.len(), 1 + 23 * BUCKETS_PER_OCTAVE);
        for (end, count) in counts {
            let below = latencies.iter().filter(|nanos| **nanos < end).count() as u64;
            assert_eq!(count, below, "{end}");
        }
        let counted: u64 = snapshot.buckets_us().iter().map(|(_, count)| count).sum();
        assert_eq!(counted, latencies.len() as u64);
    }

    #[test]
    fn percentiles_are_close_from_above() {
        let histogram = Histogram::default();
        for micros in 1..=1000 {
            histogram.record(Duration::from_micros(micros));
        }
        let snapshot = histogram.snapshot();
        assert_eq!(snapshot.count(), 1000);
        let p50 = snapshot.percentile_us(0.5);
        assert!((500.0..563.0).contains(&p50), "{p50}");
        assert!((snapshot.mean_us() - 500.5).abs() < 0.01);
        assert_eq!(Snapshot::default().percentile_us(0.99), 0.0);
    }
}
