//! What a replay has shown.

use flowstone_block::Class;
use flowstone_cache::CacheCount;
use serde::Serialize;

/// What a cache has done for reads of a class, in blocks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClassHits {
    /// Read from it.
    pub hits: u64,
    /// Read past it.
    pub misses: u64,
    /// hits / (hits + misses); absent if nothing was read.
    pub hit_ratio: Option<f64>,
}

/// The same by class.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Hits {
    /// File contents, and what no trace has a class of.
    pub data: ClassHits,
    /// File systems' metadata.
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

/// Of a part of the load. Blocks are of 4 KiB: bytes / 4096. What only a model knows is absent of a
/// file or a device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// Written by the guest.
    pub guest_blocks: f64,
    /// Written to the image's file; onto a file or a device what the kernel says that this process
    /// has sent to storage, absent if that is nothing.
    pub host_blocks: Option<f64>,
    /// Programmed by the drive, copies of its own among them.
    pub device_blocks: Option<f64>,
    /// host / guest; absent if the guest wrote nothing.
    pub host_waf: Option<f64>,
    /// device / host.
    pub device_waf: Option<f64>,
    /// device / guest.
    pub total_waf: Option<f64>,
    /// Erase blocks that were erased.
    pub erases: Option<u64>,
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
    pub device_seconds: Option<f64>,
    /// Seconds that passed for the guest.
    pub seconds: f64,
}

/// Of a phase of a trace, by name.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PhaseFigures {
    /// As the trace has it.
    pub name: String,
    /// Until the next phase began: what was still to be written or given back then counts there.
    #[serde(flatten)]
    pub figures: Figures,
}

/// Of the measured part, and what was replayed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Of all that was measured.
    #[serde(flatten)]
    pub figures: Figures,
    /// How often an erase block has been erased since the drive was new: the mean, and the most.
    pub erases_mean: Option<f64>,
    /// See above.
    pub erases_most: Option<u32>,
    /// Reads that a cache was asked for, if there was one.
    pub hits: Option<Hits>,
    /// The image's format.
    pub format: String,
    /// The guest's disk, in bytes.
    pub disk_bytes: u64,
    /// What the host sees of the drive, in bytes.
    pub drive_bytes: Option<u64>,
    /// Of a log image, in percent.
    pub reserve_percent: Option<u32>,
    /// Of a log image, in bytes.
    pub segment_bytes: Option<u64>,
    /// What the load was drawn by.
    pub seed: u64,
    /// Of each phase that the trace names, in its order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<PhaseFigures>,
}
