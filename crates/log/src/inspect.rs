//! Reads an image's superblock alone: cheap, and correct even while a daemon writes the image.

use std::time::{Duration, UNIX_EPOCH};

use flowstone_block::{Result, SECTOR_BYTES};
use flowstone_fileio::FileIo;
use flowstone_log_format::{BLOCK_BYTES, newest};
use serde::Serialize;

use super::refusal::LoadError;
use super::slots::read_slots;
use super::streams::Streams;

/// A log image at its newest checkpoint: its JSON is stable.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LogInfo {
    /// Size of the virtual disk in bytes.
    #[serde(skip)]
    pub virtual_bytes: u64,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Erase unit of the drive; `None` in an image of an earlier version.
    pub erase_unit_bytes: Option<u64>,
    /// Source of the erase unit: `option`, `device` or `default`.
    pub erase_unit_from: Option<&'static str>,
    /// Whether a raw image with TRIM is gentler on a drive with this erase unit and without write
    /// streams.
    #[serde(skip)]
    pub is_coarse: bool,
    /// Streams of guest writes, as the option names them.
    pub streams: &'static str,
    /// Space beyond the size of the disk, in percent of the whole.
    pub reserve_percent: u32,
    /// Segments that the image may use, including the one with the superblocks.
    pub segments_limit: u32,
    /// Segments in use, including the one with the superblocks.
    pub segments_used: u32,
    /// Segments that are not in use.
    pub segments_free: u32,
    /// Bytes of the disk that are mapped.
    pub live_bytes: u64,
    /// Blocks written to the file since the image was created: data, headers, copies and maps.
    pub appended_blocks: u64,
    /// Blocks that guests have written since the image was created.
    pub guest_blocks: u64,
    /// Blocks written to the file per block written by guests, if there are any.
    pub write_amplification: Option<f64>,
    /// Share of copies made by the cleaner in all written blocks, with their headers.
    pub relocated_share: Option<f64>,
    /// Share of leaves and roots of the map in all written blocks, with their headers.
    pub map_share: Option<f64>,
    /// Age of the checkpoint; `None` if there has been none since the image was created.
    pub checkpoint_age_s: Option<u64>,
    /// Whether the image was closed with this checkpoint, so nothing was written after it.
    pub clean: bool,
    /// Number of the checkpoint.
    pub generation: u64,
}

fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// Reads the superblocks of an image that a daemon may be writing.
pub fn inspect(name: &str, file: &dyn FileIo) -> Result<LogInfo> {
    let slots = read_slots(file).map_err(|error| error.explain(name))?;
    let superblock = newest(&slots).map_err(|error| LoadError::from(error).explain(name))?;
    let written_at = UNIX_EPOCH.checked_add(Duration::from_secs(superblock.written_at));
    let age = written_at.and_then(|at| at.elapsed().ok()).unwrap_or_default();
    let totals = superblock.totals;
    let segments_limit = superblock.segments;
    let segments_used = totals.used_segments.min(u64::from(segments_limit) - 1) as u32 + 1;
    let virtual_bytes = superblock.capacity_sectors * SECTOR_BYTES;
    let live_bytes = totals.live_blocks.saturating_mul(BLOCK_BYTES as u64).min(virtual_bytes);
    let segment_bytes = superblock.shape().segment_bytes();
    Ok(LogInfo {
        virtual_bytes,
        segment_bytes,
        erase_unit_bytes: superblock.erase_unit.map(|unit| unit.bytes),
        erase_unit_from: superblock.erase_unit.map(|unit| unit.source.name()),
        is_coarse: superblock.erase_unit.is_some_and(|it| it.is_coarse_for(segment_bytes, false)),
        streams: Streams::of(superblock.streams).name(),
        reserve_percent: superblock.reserve_percent,
        segments_limit,
        segments_used,
        segments_free: segments_limit - segments_used,
        live_bytes,
        appended_blocks: totals.appended_blocks,
        guest_blocks: superblock.clock,
        write_amplification: share(totals.appended_blocks, superblock.clock),
        relocated_share: share(totals.relocated_blocks, totals.appended_blocks),
        map_share: share(totals.map_blocks, totals.appended_blocks),
        checkpoint_age_s: (superblock.written_at > 0).then_some(age.as_secs()),
        clean: superblock.clean,
        generation: superblock.generation,
    })
}
