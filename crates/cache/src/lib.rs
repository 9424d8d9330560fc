//! A cache of blocks of 4 KiB that all disks of a daemon share: a layer, write-through, and the
//! policies that decide which blocks are kept. docs/cache.md has their sources and what they reach
//! on traces.
//!
//! [`Policy`] knows numbers of blocks only; `table` what is held where; `frames` the memory;
//! `channel` what becomes of a request.

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
mod table;
mod vms;

pub use args::{CacheArgs, CacheConfig, CacheSize, FreqThreshold};
pub use counters::{CacheCount, Counters};
pub use disk::CachedDisk;
pub use layer::Cached;
pub use names::{BlockId, Place};
pub use policy::{FREQ_THRESHOLD, Kept, Outcome, Policy, PolicyKind};
pub use report::DiskCacheReport;
pub use shared::Cache;
pub use table::DiskUse;
pub use vms::{VmShare, VmSize, Vms};

/// What is kept or not as a whole.
pub const BLOCK_BYTES: usize = 4096;
const BLOCK_SECTORS: u64 = BLOCK_BYTES as u64 / flowstone_block::SECTOR_BYTES;
