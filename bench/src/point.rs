//! The points of the comparison: a workload on a kind of disk.
//!
//! Disks in memory are measured with a polling client, so that only the server's own work counts;
//! on a real disk a polling client would take the core that the kernel needs for completions, so
//! there it sleeps, as a guest does.

use std::path::Path;
use std::time::Duration;

use flowstone_testkit::load::{Completion, LoadOptions};

use crate::place::{Place, RAMP, seconds};

/// The backend of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// Nothing: requests complete at once.
    Null,
    /// A raw file in memory, through the page cache.
    Tmpfs,
    /// A raw file on a real file system, O_DIRECT.
    Disk,
    /// The same file, in the cache of the server or in the page cache.
    Warm,
    /// A qcow2 image without data.
    NewQcow2,
    /// A log image without data: a burst, during which nothing is cleaned.
    NewLog,
    /// A log image that is full and has been overwritten at random: writes and cleaning run
    /// concurrently.
    SteadyLog,
}

impl Backend {
    const fn prefix(self) -> &'static str {
        match self {
            Backend::Null => "null",
            Backend::Tmpfs => "tmpfs",
            Backend::Disk => "disk",
            Backend::Warm => "warm",
            Backend::NewQcow2 => "qcow2-new",
            Backend::NewLog => "log-new",
            Backend::SteadyLog => "log-steady",
        }
    }

    /// Returns the time before measuring starts, for every server alike.
    pub const fn ramp(self) -> Duration {
        match self {
            // Closing an image frees its dead segments: cleaning has to start again.
            Backend::SteadyLog => Duration::from_secs(2),
            _ => RAMP,
        }
    }
}

/// One row group of the tables.
#[derive(Clone, Debug)]
pub struct Point {
    /// Short name, for `--only` and for scripts.
    pub name: String,
    /// Title in tables.
    pub title: String,
    /// The backend of the disk.
    pub backend: Backend,
    /// fio's word for the workload.
    pub rw: &'static str,
    /// Request size.
    pub block_bytes: u64,
    /// Requests in flight per queue.
    pub iodepth: u16,
    /// Queues; one client thread drives all of them.
    pub queues: usize,
}

const KIB: u64 = 1024;

impl Point {
    fn new(backend: Backend, rw: &'static str, kib: u64, iodepth: u16, queues: usize) -> Self {
        let prefix = backend.prefix();
        let depth = match queues {
            1 => format!("qd{iodepth}"),
            _ => format!("{queues}xqd{iodepth}"),
        };
        let words = match rw {
            "randread" => "random read",
            "randwrite" => "random write",
            "read" => "sequential read",
            "write" => "sequential write",
            other => other,
        };
        let shown = match queues {
            1 => format!("QD{iodepth}"),
            _ => format!("{queues} queues x QD{iodepth}"),
        };
        Point {
            name: format!("{prefix}-{rw}-{kib}k-{depth}"),
            title: format!("{kib} KiB {words} {shown}"),
            backend,
            rw,
            block_bytes: kib * KIB,
            iodepth,
            queues,
        }
    }

    /// Returns all points, in the order of the report.
    pub fn all() -> Vec<Point> {
        let mut points = vec![
            Point::new(Backend::Null, "randread", 4, 1, 1),
            Point::new(Backend::Null, "randread", 4, 32, 1),
            Point::new(Backend::Null, "randread", 4, 32, 2),
        ];
        for rw in ["randread", "randwrite"] {
            points.extend([1, 32].map(|depth| Point::new(Backend::Tmpfs, rw, 4, depth, 1)));
        }
        for rw in ["randread", "randwrite"] {
            points.extend([1, 32, 128].map(|depth| Point::new(Backend::Disk, rw, 4, depth, 1)));
        }
        points.extend(["read", "write"].map(|rw| Point::new(Backend::Disk, rw, 128, 8, 1)));
        points.extend([1, 32].map(|depth| Point::new(Backend::Warm, "randread", 4, depth, 1)));
        points.push(Point::new(Backend::NewQcow2, "randwrite", 4, 32, 1));
        for backend in [Backend::NewLog, Backend::SteadyLog] {
            let point = |depth| Point::new(backend, "randwrite", 4, depth, 1);
            points.extend([1, 32, 128].map(point));
        }
        points
    }

    /// Returns how the client detects completions.
    pub fn completion(&self) -> Completion {
        match self.backend {
            Backend::Null | Backend::Tmpfs | Backend::Warm => Completion::Poll,
            Backend::Disk | Backend::NewQcow2 | Backend::NewLog | Backend::SteadyLog => {
                Completion::Eventfd
            }
        }
    }

    /// Returns the options of the generator.
    pub fn load(&self, place: &Place, socket: &Path, runtime: f64) -> LoadOptions {
        let mut options = place.load(socket, self.rw, self.iodepth);
        options.client = options.client.queues(self.queues);
        options.block_bytes = self.block_bytes;
        options.completion = self.completion();
        options.limit = seconds(self.backend.ramp(), runtime);
        options
    }
}

/// Returns whether the name contains any of the patterns; `true` if there are none.
pub fn selected(name: &str, patterns: &[String]) -> bool {
    patterns.is_empty() || patterns.iter().any(|pattern| name.contains(pattern))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_select_themselves() {
        let points = Point::all();
        for point in &points {
            let same = points.iter().filter(|other| other.name == point.name).count();
            assert_eq!(same, 1, "{}", point.name);
            assert!(selected(&point.name, std::slice::from_ref(&point.name)));
        }
        assert!(!selected("null-randread-4k-qd1", &["disk".to_owned()]));
    }
}
