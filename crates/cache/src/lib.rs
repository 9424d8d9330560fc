//! A write-through cache of 4 KiB blocks shared by all disks of a daemon: a layer, and the
//! replacement policies. docs/cache.md has their sources and their results on traces.
//!
//! [`Policy`] handles block numbers only; `table` maps blocks to frames; `frames` is the memory;
//! `channel` processes requests.

mod args;
mod buckets;
mod channel;
mod counters;
mod curve;
mod disk;
mod entries;
mod frames;
mod layer;
mod names;
mod policy;
mod prefetch;
mod readahead;
mod report;
mod shared;
mod staging;
mod table;
mod vms;

pub use args::{CacheArgs, CacheConfig, CacheSize, FreqThreshold};
pub use counters::{CacheCount, QueueCounters};
pub use disk::CachedDisk;
pub use layer::Cached;
pub use names::{BlockId, Place};
pub use policy::{FREQ_THRESHOLD, Kept, Outcome, Policy, PolicyKind};
pub use report::DiskCacheReport;
pub use shared::Cache;
pub use table::DiskUse;
pub use vms::{VmShare, VmSize, Vms};

/// Size of a cached block.
pub const BLOCK_BYTES: usize = 4096;
const BLOCK_SECTORS: u64 = BLOCK_BYTES as u64 / flowstone_block::SECTOR_BYTES;
