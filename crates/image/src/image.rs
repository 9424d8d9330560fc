//! Operations of every image format besides serving requests.

use std::io;

use clap::ValueEnum;
use flowstone_block::{Extent, Family, Layer, Metric, MetricKind, Result, Sector, SectorCount};
use flowstone_fileio::FileIo;
use serde::Serialize;
use serde_json::Value;

use crate::damage::{DamageWatcher, Damages};
use crate::format::Format;

/// Treatment of the space behind a discarded range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum DiscardMode {
    /// Give the space back to the host
    #[default]
    Deallocate,
    /// Keep the range of a raw file allocated, and read it as zeroes; an image on a block device
    /// gets the discard
    Keep,
    /// Do not offer discards to guests
    Ignore,
}

/// When a log image gives back segments without live blocks, besides when it is idle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Tell {
    /// At once on a device that supports discards; in a file dead segments are overwritten without
    /// being given back, which costs the host less
    #[default]
    Auto,
    /// At once in a file, too: a file system that is mounted with `discard` passes the discards to
    /// the drive
    Always,
}

/// Space that an image takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Space {
    /// Size of the virtual disk in bytes.
    pub virtual_bytes: u64,
    /// Bytes of the disk that hold data, where the image knows. A raw image has no map: all that
    /// the host has allocated counts as data.
    pub live_bytes: Option<u64>,
    /// Bytes that the host has allocated to the image.
    pub allocated_bytes: u64,
    /// Bytes of the image that are no longer in use, in formats that leave such behind: they go
    /// back to the host later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_bytes: Option<u64>,
}

impl Space {
    /// Metrics of an image's space.
    pub const METRICS: &[Metric<Self>] = &[
        Metric::gauge(
            "flowstone_disk_allocated_bytes",
            "Space allocated on the host; up to a minute old, or older if the host does not answer",
            |it| it.allocated_bytes as f64,
        ),
        Metric::maybe(
            MetricKind::Gauge,
            "flowstone_disk_live_bytes",
            "Space that holds data; as old as allocated",
            |it| Some(it.live_bytes? as f64),
        ),
        Metric::maybe(
            MetricKind::Gauge,
            "flowstone_disk_dead_bytes",
            "Space allocated on the host but not used; as old as allocated",
            |it| Some(it.dead_bytes? as f64),
        ),
    ];
}

/// Layout of an image's data in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes that the host has allocated to the image.
    pub allocated_bytes: u64,
    /// Contiguous pieces of the file that a read of all data in LBA order touches.
    pub data_runs: u64,
    /// Extents in which the host keeps the file, where its file system reports them.
    pub host_extents: Option<u64>,
    /// Whether reads bypass the host's page cache.
    pub direct: bool,
}

impl Layout {
    /// Returns what the file itself reports, without data runs.
    pub fn of(file: &dyn FileIo) -> io::Result<Self> {
        Ok(Self {
            allocated_bytes: file.allocated_bytes()?,
            data_runs: 0,
            host_extents: file.extents(),
            direct: file.is_direct(),
        })
    }
}

/// Progress of `compact`: work done, and work in all.
pub type CompactProgress<'a> = &'a mut dyn FnMut(u64, u64);

/// Counters of discards, and of write-zeroes that may give space back, since an image was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Discards {
    /// Ranges received.
    pub ranges: u64,
    /// Bytes of the received ranges.
    pub bytes: u64,
    /// Merged runs of neighbouring ranges handed to the host.
    pub merged: u64,
    /// Ranges received and not completed.
    pub waiting: u64,
    /// Host calls that deallocated space; none is made for ranges that are holes already.
    pub punches: u64,
    /// Bytes of the ranges of these calls.
    pub punched_bytes: u64,
    /// Bytes that these calls returned to the host.
    #[serde(skip)]
    pub reclaimed_bytes: u64,
}

impl Discards {
    /// Metrics of discards.
    pub const METRICS: &[Metric<Self>] = &[
        Metric::counter(
            "flowstone_disk_reclaimed_bytes_total",
            "Space given back to the host",
            |it| it.reclaimed_bytes as f64,
        ),
        Metric::counter(
            "flowstone_discard_ranges_total",
            "Ranges that guests have discarded",
            |it| it.ranges as f64,
        ),
        Metric::counter("flowstone_discard_bytes_total", "Bytes of discarded ranges", |it| {
            it.bytes as f64
        }),
        Metric::counter(
            "flowstone_discard_punches_total",
            "Calls that gave space back to the host",
            |it| it.punches as f64,
        ),
        Metric::counter(
            "flowstone_discard_punched_bytes_total",
            "Bytes of the ranges of these calls",
            |it| it.punched_bytes as f64,
        ),
    ];
}

/// State that only images of one format have.
#[derive(Debug)]
pub struct OwnState {
    /// Its JSON.
    pub json: Value,
    /// Its metrics, each with its family and the value of the label.
    pub metrics: Vec<(Family, String, f64)>,
}

impl OwnState {
    /// Reads the JSON and the metrics of a state.
    pub fn of<S: Serialize>(state: &S, metrics: &[Metric<S>]) -> Self {
        let mut all = Vec::new();
        for metric in metrics {
            metric.read(state, &mut |which, value| {
                all.push((metric.family, which.to_owned(), value));
            });
        }
        Self { json: serde_json::to_value(state).unwrap_or_default(), metrics: all }
    }
}

/// An open disk image.
pub trait Image: Layer {
    /// Returns the format of the image.
    fn format(&self) -> Format;

    /// Returns the space that the image takes now.
    fn space(&self) -> io::Result<Space>;

    /// Returns the first range at or after `from` that may hold something other than zeroes.
    fn next_data(&self, from: Sector) -> io::Result<Option<Extent>>;

    /// Returns the counters of discards.
    fn discards(&self) -> Discards;

    /// Changes the size of the disk, live. Shrinking is refused where there is data.
    fn resize(&self, capacity: SectorCount) -> Result<()>;

    /// Returns the layout of the data in the file.
    fn layout(&self) -> io::Result<Layout>;

    /// Deallocates what holds no data, and puts the data in LBA order where the format can place
    /// it. The image must not be in use.
    fn compact(&self, progress: CompactProgress<'_>) -> Result<()>;

    /// Returns the damage met since the image was opened; a raw image cannot detect any.
    fn damages(&self) -> Damages {
        Damages::default()
    }

    /// Calls `watcher` for each newly damaged place, on the thread that meets it: it must not
    /// block. Only the first watcher set is kept.
    fn watch_damages(&self, _watcher: DamageWatcher) {}

    /// Returns the state that only images of its format have.
    fn own_state(&self) -> Option<OwnState> {
        None
    }

    /// Ends its upkeep, makes everything durable, and brings the file into the state of a closed
    /// image. For its last user, who makes no more requests. Dropping the image closes it, too, but
    /// can only log a failure.
    fn close(&self) -> Result<()>;

    /// Returns the host file.
    fn file(&self) -> &dyn FileIo;

    /// Returns one line on how the image is served: I/O engine, caching.
    fn serving(&self) -> String;
}
