//! The workloads for raw and log images, with the targets of log images.

use self::Contender::{Raw, RawAlone};

/// A contender; all of them are served by Flowstone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contender {
    /// A raw image with every block written.
    Raw,
    /// The same with one queue, whatever the number of the others.
    RawAlone,
    /// A log image with every block written.
    Log,
}

impl Contender {
    /// Returns the name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::RawAlone => "one raw writer",
            Self::Log => "log",
        }
    }
}

/// One workload.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// Short name, for `--only`.
    pub name: &'static str,
    /// Title in tables.
    pub title: &'static str,
    /// fio's word for the workload.
    pub rw: &'static str,
    /// Request size.
    pub kib: u64,
    /// Requests in flight per queue.
    pub iodepth: u16,
    /// Queues; one client thread drives all of them.
    pub queues: usize,
    /// Number of writes between flushes; 0 means no flushes.
    pub flush_every: u64,
    /// The space that the images write to.
    pub space: Space,
    /// The image has been overwritten at random, and sorted since.
    pub settled: bool,
    /// Required rates of the log image, as multiples of other contenders' rates.
    pub targets: &'static [(Contender, f64)],
}

/// The state of the host's space below the images. Space that was allocated and never written costs
/// the host a change of its metadata with the first write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// The raw image was written before; the log image allocates as it writes, in four times the
    /// room.
    Own,
    /// Both allocate.
    Fresh,
    /// Both write where they have written before.
    Written,
}

const fn point(
    name: &'static str,
    title: &'static str,
    (rw, kib, iodepth): (&'static str, u64, u16),
    targets: &'static [(Contender, f64)],
) -> Point {
    let (queues, flush_every, space, settled) = (1, 0, Space::Own, false);
    Point { name, title, rw, kib, iodepth, queues, flush_every, space, settled, targets }
}

/// 128 KiB or 1 MiB in sequence.
const fn large(
    name: &'static str,
    title: &'static str,
    (kib, iodepth): (u64, u16),
    space: Space,
) -> Point {
    Point { space, ..point(name, title, ("write", kib, iodepth), LEVEL) }
}

impl Point {
    const fn flushed(self, flush_every: u64) -> Self {
        Point { flush_every, ..self }
    }

    const fn queues(self, queues: usize) -> Self {
        Point { queues, ..self }
    }

    const fn settled(self) -> Self {
        Point { settled: true, ..self }
    }

    /// Returns the contenders measured here by name, the log image last.
    pub fn contenders(&self) -> Vec<(&'static str, Contender)> {
        let all = self.targets.iter().map(|(to, _)| *to).chain([Contender::Log]);
        all.map(|it| (it.name(), it)).collect()
    }
}

const LEVEL: &[(Contender, f64)] = &[(Raw, 1.0)];
const READS: &[(Contender, f64)] = &[(Raw, 0.98)];

/// In the order of the table.
pub const POINTS: [Point; 19] = [
    large("fresh-128k-qd8", "128 KiB sequential write QD8, fresh space", (128, 8), Space::Fresh),
    large("fresh-128k-qd32", "the same QD32", (128, 32), Space::Fresh),
    large("fresh-1m-qd8", "1 MiB sequential write QD8, fresh space", (1024, 8), Space::Fresh),
    large("fresh-1m-qd32", "the same QD32", (1024, 32), Space::Fresh),
    large(
        "again-128k-qd8",
        "128 KiB sequential write QD8, written space",
        (128, 8),
        Space::Written,
    ),
    large("again-128k-qd32", "the same QD32", (128, 32), Space::Written),
    large("again-1m-qd8", "1 MiB sequential write QD8, written space", (1024, 8), Space::Written),
    large("again-1m-qd32", "the same QD32", (1024, 32), Space::Written),
    point("rand-write-4k-qd1", "4 KiB random write QD1", ("randwrite", 4, 1), LEVEL),
    point("rand-write-4k-qd32", "4 KiB random write QD32", ("randwrite", 4, 32), &[(Raw, 2.5)]),
    point("rand-write-4k-qd128", "4 KiB random write QD128", ("randwrite", 4, 128), &[(Raw, 3.0)]),
    point("rand-write-4k-4xqd8", "4 KiB random write 4 x QD8", ("randwrite", 4, 8), &[(Raw, 2.5)])
        .queues(4),
    point("flush-32", "the same QD32, a flush every 32", ("randwrite", 4, 32), &[(Raw, 2.0)])
        .flushed(32),
    point("flush-8", "the same QD32, a flush every 8", ("randwrite", 4, 32), &[(Raw, 1.8)])
        .flushed(8),
    point("flush-1", "the same QD32, a flush every 1", ("randwrite", 4, 32), &[(Raw, 1.05)])
        .flushed(1),
    point(
        "writers-4k-8xqd64",
        "8 sequential writers 4 KiB QD64",
        ("write", 4, 64),
        &[(Raw, 1.16), (RawAlone, 1.0)],
    )
    .queues(8),
    point("rand-read-4k-qd1", "4 KiB random read QD1, all mapped", ("randread", 4, 1), READS),
    point("rand-read-4k-qd32", "4 KiB random read QD32, all mapped", ("randread", 4, 32), READS),
    point(
        "seq-read-128k-qd8-settled",
        "128 KiB sequential read QD8, after random overwrites, put in order",
        ("read", 128, 8),
        &[(Raw, 0.95)],
    )
    .settled(),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::point::selected;

    #[test]
    fn names_are_unique_and_workloads_known() {
        for point in POINTS {
            let same = POINTS.iter().filter(|other| other.name == point.name).count();
            assert_eq!(same, 1, "{}", point.name);
            let known = point.rw.parse::<flowstone_testkit::load::Workload>();
            assert!(known.is_ok(), "{}", point.rw);
        }
    }

    #[test]
    fn a_log_image_is_always_measured_and_compared() {
        for point in POINTS {
            assert!(point.contenders().len() >= 2, "{}", point.name);
            assert_eq!(point.contenders().last(), Some(&("log", Contender::Log)));
        }
    }

    #[test]
    fn a_pattern_selects_all_points_with_it() {
        let chosen = POINTS.iter().filter(|it| selected(it.name, &["flush".to_owned()])).count();
        assert_eq!(chosen, 3);
    }
}
