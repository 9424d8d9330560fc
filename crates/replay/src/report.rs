//! What a replay has shown.

use serde::Serialize;

/// Of the measured part. Blocks are of 4 KiB: bytes / 4096.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Written by the guest.
    pub guest_blocks: f64,
    /// Written to the image's file.
    pub host_blocks: f64,
    /// Programmed by the drive, copies of its own among them.
    pub device_blocks: f64,
    /// host / guest; absent if the guest wrote nothing.
    pub host_waf: Option<f64>,
    /// device / host.
    pub device_waf: Option<f64>,
    /// device / guest.
    pub total_waf: Option<f64>,
    /// Erase blocks that were erased.
    pub erases: u64,
    /// How often an erase block has been erased since the drive was new: the mean, and the most.
    pub erases_mean: f64,
    /// See above.
    pub erases_most: u32,
    /// Calls that gave space of the file back.
    pub punches: u64,
    /// Requests of the guest, of each kind.
    pub requests: u64,
    /// See above.
    pub reads: u64,
    /// See above.
    pub writes: u64,
    /// See above.
    pub flushes: u64,
    /// See above.
    pub discards: u64,
    /// Writes that went on where the one before had ended, in percent.
    pub sequential_percent: f64,
    /// Seconds that the drive was at work.
    pub device_seconds: f64,
    /// Seconds that passed for the guest.
    pub seconds: f64,
    /// The image's format.
    pub format: String,
    /// The guest's disk, in bytes.
    pub disk_bytes: u64,
    /// What the host sees of the drive, in bytes.
    pub drive_bytes: u64,
    /// Of a log image, in percent.
    pub reserve_percent: Option<u32>,
    /// Of a log image, in bytes.
    pub segment_bytes: Option<u64>,
    /// What the load was drawn by.
    pub seed: u64,
}
