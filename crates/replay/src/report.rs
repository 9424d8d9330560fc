//! The results of a replay.

use flowstone_block::Class;
use flowstone_cache::CacheCount;
use serde::Serialize;

use crate::ideal::Ideal;
use crate::kinds::Kinds;

/// Cache hits of reads of a class, in blocks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClassHits {
    /// Blocks read from the cache.
    pub hits: u64,
    /// Blocks read from below it.
    pub misses: u64,
    /// hits / (hits + misses); absent if nothing was read.
    pub hit_ratio: Option<f64>,
}

/// Cache hits by class.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Hits {
    /// File contents, and blocks of unknown class.
    pub data: ClassHits,
    /// File system metadata.
    pub metadata: ClassHits,
    /// Journals.
    pub journal: ClassHits,
}

type Counts = [CacheCount; Class::ALL.len()];

impl Hits {
    pub(crate) fn since(now: Counts, earlier: Counts) -> Self {
        let of = |class: Class| {
            let (now, earlier) = (now[class as usize], earlier[class as usize]);
            let (hits, misses) = (now.hits - earlier.hits, now.misses - earlier.misses);
            let all = hits + misses;
            ClassHits { hits, misses, hit_ratio: (all > 0).then(|| hits as f64 / all as f64) }
        };
        Self { data: of(Class::Data), metadata: of(Class::Metadata), journal: of(Class::Journal) }
    }
}

/// Figures of a part of the load. Blocks are of 4 KiB: bytes / 4096. Figures known only to a model
/// are absent for a file or a device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// Blocks written by the guest.
    pub guest_blocks: f64,
    /// Blocks written to the image's file; for a file or a device the kernel's count of what this
    /// process has sent to storage, absent if that is zero.
    pub host_blocks: Option<f64>,
    /// Blocks programmed by the drive, including its own copies.
    pub device_blocks: Option<f64>,
    /// host / guest; absent if the guest wrote nothing.
    pub host_waf: Option<f64>,
    /// device / host.
    pub device_waf: Option<f64>,
    /// device / guest.
    pub total_waf: Option<f64>,
    /// Erased erase blocks.
    pub erases: Option<u64>,
    /// Calls that punched holes into the file.
    pub punches: u64,
    /// Requests of the guest, in total and of each kind.
    pub requests: u64,
    /// See above.
    pub reads: u64,
    /// See above.
    pub writes: u64,
    /// See above.
    pub flushes: u64,
    /// See above.
    pub discards: u64,
    /// Percentage of writes that begin where the previous one ended.
    pub sequential_percent: f64,
    /// Seconds for which the drive was busy.
    pub device_seconds: Option<f64>,
    /// Seconds elapsed for the guest.
    pub seconds: f64,
}

/// Figures of a phase of a trace.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PhaseFigures {
    /// Name of the phase in the trace.
    pub name: String,
    /// Figures until the next phase began: writes and discards still pending then count there.
    #[serde(flatten)]
    pub figures: Figures,
}

/// Figures of the measured part, and parameters of the replay.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Figures of the whole measured part.
    #[serde(flatten)]
    pub figures: Figures,
    /// Erases per erase block since the drive was new: mean and maximum.
    pub erases_mean: Option<f64>,
    /// See above.
    pub erases_most: Option<u32>,
    /// Reads seen by the cache, if there was one.
    pub hits: Option<Hits>,
    /// The writes of log images on a model by their kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kinds: Option<Kinds>,
    /// An ideal log under the same writes, of log images on a model with a generated load.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ideal: Option<Ideal>,
    /// Format of the image.
    pub format: String,
    /// Size of the guests' disks in bytes, together.
    pub disk_bytes: u64,
    /// Size of the drive as the host sees it, in bytes.
    pub drive_bytes: Option<u64>,
    /// Reserve of a log image in percent.
    pub reserve_percent: Option<u32>,
    /// Segment size of a log image in bytes.
    pub segment_bytes: Option<u64>,
    /// Seed of the random choices.
    pub seed: u64,
    /// Figures of each phase named in the trace, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<PhaseFigures>,
}
