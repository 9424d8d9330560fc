//! Resolution of the histograms in `GET /metrics`.

use clap::ValueEnum;

/// Buckets of the histograms of `GET /metrics`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum MetricsBuckets {
    /// One bucket for every second power of two of nanoseconds
    #[default]
    Coarse,
    /// All buckets of the daemon: eight for each power of two
    Fine,
}
