//! `GET /metrics`: metrics of all disks in Prometheus' text format.
//!
//! No file of a disk is accessed and no lock is taken under which a disk works: a host that does
//! not answer delays no other disk's metrics.

mod disk;

use flowstone_block::{Metric, MetricKind};
use flowstone_cache::Cache;
use flowstone_host::OwnProcess;

use crate::disks::Disks;
use crate::families::{Families, MetricsBuckets};

/// Content type of the text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The only metric that tells nothing of this host.
const BUILD: &[Metric<()>] = &[Metric::each(
    MetricKind::Gauge,
    "flowstone_build_info",
    "version",
    "The daemon: always 1",
    |(), add| add(env!("CARGO_PKG_VERSION"), 1.0),
)];

/// Returns the text of a scrape.
pub fn text(disks: &Disks, cache: Option<&Cache>, buckets: MetricsBuckets) -> String {
    collect(disks, cache, buckets).text()
}

fn collect(disks: &Disks, cache: Option<&Cache>, buckets: MetricsBuckets) -> Families {
    let mut families = Families::new(buckets);
    families.read(BUILD, Some(&()));
    families.read(OwnProcess::METRICS, Some(&OwnProcess::look()));
    families.read(Cache::METRICS, cache);
    disk::collect(disks, &mut families);
    families
}

#[cfg(test)]
mod tests {
    use flowstone_cache::{CacheArgs, CacheSize};

    use super::*;

    #[test]
    fn the_page_has_every_name_and_no_other() {
        let page = include_str!("../../../docs/metrics.md");
        let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| `")).collect();
        let families = collect(&Disks::default(), None, MetricsBuckets::default());
        assert_eq!(rows, families.rows());
    }

    #[test]
    fn a_daemon_without_disks_has_figures_too() {
        let args = CacheArgs { cache: Some(CacheSize(1 << 20)), ..CacheArgs::default() };
        let cache = args.config().unwrap().unwrap().make().unwrap();
        let text = text(&Disks::default(), Some(&cache), MetricsBuckets::default());
        for line in ["flowstone_build_info{version=", "flowstone_cache_target_bytes 1048576\n"] {
            assert!(text.contains(line), "{text}");
        }
    }
}
