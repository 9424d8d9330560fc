//! What `stats --json` says of an image.

use flowstone_block::{Damage, Sector};
use flowstone_image::{Damages, Discards, Image, LogState, Space};
use serde::Serialize;

/// What a log image does.
#[derive(Serialize)]
pub struct LogReport {
    live_bytes: u64,
    map_memory_bytes: u64,
    segments_limit: u32,
    segments_used: u32,
    segments_ready: u32,
    segments_dead: u32,
    guest_blocks: u64,
    appended_blocks: u64,
    relocated_blocks: u64,
    map_blocks: u64,
    write_amplification: f64,
    header_blocks: u64,
    seal_blocks: u64,
    cleaned_segments: u64,
    copied_blocks: u64,
    cleaning_seconds: f64,
    checkpoint: u64,
    since_checkpoint_blocks: u64,
    resorted_bytes: u64,
    resort_passes: u64,
    full: bool,
}

impl From<LogState> for LogReport {
    fn from(state: LogState) -> Self {
        Self {
            live_bytes: state.live_bytes,
            map_memory_bytes: state.map_memory_bytes,
            segments_limit: state.segments_limit,
            segments_used: state.segments_used,
            segments_ready: state.segments_ready,
            segments_dead: state.segments_dead,
            guest_blocks: state.guest_blocks,
            appended_blocks: state.appended_blocks,
            relocated_blocks: state.relocated_blocks,
            map_blocks: state.map_blocks,
            write_amplification: state.appended_blocks as f64 / state.guest_blocks.max(1) as f64,
            header_blocks: state.costs.header_blocks,
            seal_blocks: state.costs.seal_blocks,
            cleaned_segments: state.costs.cleaned_segments,
            copied_blocks: state.costs.copied_blocks,
            cleaning_seconds: state.costs.cleaning_time.as_secs_f64(),
            checkpoint: state.checkpoint,
            since_checkpoint_blocks: state.since_checkpoint_blocks,
            resorted_bytes: state.resorted_bytes,
            resort_passes: state.resort_passes,
            full: state.full,
        }
    }
}

/// How much room an image takes.
#[derive(Serialize)]
pub struct SpaceReport {
    virtual_bytes: u64,
    /// Null where the image does not know.
    live_bytes: Option<u64>,
    pub allocated_bytes: u64,
    /// Absent from formats that leave nothing dead.
    #[serde(skip_serializing_if = "Option::is_none")]
    dead_bytes: Option<u64>,
    reclaimed_bytes: u64,
}

impl SpaceReport {
    /// Of what the image has told.
    pub fn of(space: Space, image: &dyn Image) -> Self {
        Self {
            virtual_bytes: space.virtual_bytes,
            live_bytes: space.live_bytes,
            allocated_bytes: space.allocated_bytes,
            dead_bytes: space.dead_bytes,
            reclaimed_bytes: image.discards().reclaimed_bytes,
        }
    }
}

/// What became of discards.
#[derive(Serialize)]
pub struct DiscardReport {
    requests: u64,
    ranges: u64,
    bytes: u64,
    merged: u64,
    merge_ratio: f64,
    waiting: u64,
    punches: u64,
    punched_bytes: u64,
}

impl DiscardReport {
    /// The image sees ranges; how many requests brought them, the queues know.
    pub fn of(requests: u64, counted: Discards) -> Self {
        Self {
            requests,
            ranges: counted.ranges,
            bytes: counted.bytes,
            merged: counted.merged,
            merge_ratio: counted.ranges as f64 / counted.merged.max(1) as f64,
            waiting: counted.waiting,
            punches: counted.punches,
            punched_bytes: counted.punched_bytes,
        }
    }
}

/// Damage that requests or maintenance have met.
#[derive(Serialize)]
pub struct DamageReport {
    met: u64,
    recent: Vec<DamagedPlace>,
}

#[derive(Serialize)]
struct DamagedPlace {
    what: String,
    /// Null if it is not known which sectors of the disk are lost.
    lba: Option<u64>,
    /// Null if it is nowhere in the file.
    offset: Option<u64>,
}

impl From<Damages> for DamageReport {
    fn from(damages: Damages) -> Self {
        let place = |Damage { what, lba, offset, .. }| DamagedPlace {
            what,
            lba: lba.map(Sector::get),
            offset,
        };
        Self { met: damages.met, recent: damages.recent.into_iter().map(place).collect() }
    }
}
