//! The state of an open log image, for reports.

use flowstone_block::sync::atomic::Ordering;
use flowstone_block::{Metric, MetricKind};
use serde::Serialize;

use super::log::{Log, LogCosts};
use super::volume::Volume;

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
    /// Closed segments with blocks of the disk.
    pub segments_of_data: u32,
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

    /// Returns the state of an open image; takes the log's lock briefly.
    pub(crate) fn of(log: &Log, volume: &Volume) -> Self {
        let map_memory_bytes = volume.map.memory_bytes(volume.blocks());
        let state = log.append_state();
        let (segments, accounting) = (state.segments(), state.accounting());
        let totals = accounting.totals();
        Self {
            live_bytes: volume.live_bytes(),
            map_memory_bytes,
            segments_limit: segments.limit(),
            segments_used: segments.used() + 1,
            segments_ready: segments.ready(),
            segments_dead: segments.dead_count(),
            segments_of_data: segments.closed_of_data(),
            guest_blocks: accounting.clock(),
            appended_blocks: totals.appended_blocks,
            relocated_blocks: totals.relocated_blocks,
            map_blocks: totals.map_blocks,
            write_amplification: totals.appended_blocks as f64 / accounting.clock().max(1) as f64,
            costs: accounting.costs(),
            checkpoint: state.generation(),
            since_checkpoint_blocks: accounting.since_checkpoint(),
            untold_dead_bytes: u64::from(segments.untold()) * log.shape.segment_bytes(),
            telling: log.telling.load(Ordering::Relaxed),
            run_bytes: log.run_bytes.load(Ordering::Relaxed),
            resorted_bytes: volume.resorting.written(),
            resort_passes: volume.resorting.passes(),
            full: state.is_full(),
        }
    }
}
