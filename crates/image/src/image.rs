//! Operations of every image format besides serving requests.

use std::io;

use clap::ValueEnum;
use flowstone_block::{Extent, Layer, Metric, MetricKind, Result, Sector, SectorCount};
use flowstone_fileio::FileIo;
use serde::Serialize;

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

/// Costs of a log besides the blocks that guests write, since the image was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LogCosts {
    /// Headers of records of all kinds.
    pub header_blocks: u64,
    /// Seals at the ends of segments.
    pub seal_blocks: u64,
    /// Segments whose live blocks the cleaner has copied.
    pub cleaned_segments: u64,
    /// Blocks that the cleaner has copied, without headers.
    pub copied_blocks: u64,
    /// Time spent cleaning, without the rests for guests.
    pub cleaning_seconds: f64,
}

/// State of an open log image.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LogState {
    /// Bytes of the disk that are mapped.
    pub live_bytes: u64,
    /// Memory of the map in bytes.
    pub map_memory_bytes: u64,
    /// Segments that the image may use.
    pub segments_limit: u32,
    /// Segments in use.
    pub segments_used: u32,
    /// Segments that are ready to be written.
    pub segments_ready: u32,
    /// Segments that wait for a checkpoint to be freed.
    pub segments_dead: u32,
    /// Blocks that guests have written since the image was created.
    pub guest_blocks: u64,
    /// Blocks written to the file since the image was created: data, headers, copies and maps.
    pub appended_blocks: u64,
    /// Of the appended blocks, copies made by the cleaner, with their headers.
    pub relocated_blocks: u64,
    /// Of the appended blocks, leaves and roots of the map, with their headers.
    pub map_blocks: u64,
    /// Write amplification: appended blocks per guest block.
    pub write_amplification: f64,
    /// Costs of the log besides the blocks of guests.
    #[serde(flatten)]
    pub costs: LogCosts,
    /// Number of the newest checkpoint.
    pub checkpoint: u64,
    /// Blocks appended since the newest checkpoint.
    pub since_checkpoint_blocks: u64,
    /// Bytes of dead segments that are still allocated on the host.
    pub untold_dead_bytes: u64,
    /// Whether dead segments are deallocated at once, so that the drive knows.
    pub telling: bool,
    /// Bytes of copies that the cleaner writes in a row; 0 while it holds no copy memory because it
    /// has nothing to copy.
    pub run_bytes: u64,
    /// Bytes that the re-sorting pass has written since the image was opened.
    pub resorted_bytes: u64,
    /// Completed re-sorting passes over the whole disk.
    pub resort_passes: u64,
    /// Whether writes are refused for lack of space.
    pub full: bool,
}

impl LogState {
    /// Metrics of a log image.
    pub const METRICS: &[Metric<Self>] = &[
        Metric::each(
            MetricKind::Gauge,
            "flowstone_log_segments",
            "state",
            "Segments of a log image: used, ready, dead (free after the next checkpoint), limit",
            |it, add| {
                add("limit", f64::from(it.segments_limit));
                add("used", f64::from(it.segments_used));
                add("ready", f64::from(it.segments_ready));
                add("dead", f64::from(it.segments_dead));
            },
        ),
        Metric::each(
            MetricKind::Counter,
            "flowstone_log_appended_blocks_total",
            "kind",
            "Blocks written to a log image since it was made: guest, copy, map, other",
            |it, add| {
                let known = it.guest_blocks + it.relocated_blocks + it.map_blocks;
                add("guest", it.guest_blocks as f64);
                add("copy", it.relocated_blocks as f64);
                add("map", it.map_blocks as f64);
                add("other", it.appended_blocks.saturating_sub(known) as f64);
            },
        ),
        Metric::counter(
            "flowstone_log_cleaning_seconds_total",
            "Time of cleaning, without its pauses",
            |it| it.costs.cleaning_seconds,
        ),
        Metric::gauge("flowstone_log_full", "1 if a log image refuses writes", |it| {
            f64::from(u8::from(it.full))
        }),
    ];
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

    /// Returns the state that only a log image has.
    fn log_state(&self) -> Option<LogState> {
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
