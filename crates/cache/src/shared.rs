//! The cache shared by all disks of a daemon.

use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flowstone_block::{Metric, mutated};

use crate::BLOCK_BYTES;
use crate::frames::Memory;
use crate::names::{BlockId, random_key};
use crate::policy::{FREQ_THRESHOLD, PolicyKind};
use crate::staging::Staging;
use crate::table::{DiskUse, Table, Target};
use crate::vms::Vms;

/// Frames for fills and evictions in progress, beside those of the policy: a fraction of all
/// frames, and a minimum.
const SPARE_OF: usize = 64;
const SPARE_MIN: usize = 16;
/// Frames for blocks read ahead: likewise.
const AHEAD_OF: usize = 32;
const AHEAD_MIN: usize = 32;
/// Streams that the frames for read-ahead are divided between.
const STREAMS_AHEAD: usize = 4;

/// A cache for blocks of all disks.
pub struct Cache {
    pub(crate) memory: Memory,
    pub(crate) staging: Staging,
    table: Mutex<Table>,
    kind: PolicyKind,
    frames_max: usize,
    /// Bytes that it may take now.
    target: AtomicU64,
    /// Longest read-ahead of a stream, in blocks.
    window_max: AtomicUsize,
    /// Number of known VMs.
    vms: AtomicUsize,
}

/// Divides a number of frames.
fn target_of(frames: usize) -> Target {
    let spare = (frames / SPARE_OF).max(SPARE_MIN);
    let ahead = (frames / AHEAD_OF).max(AHEAD_MIN);
    Target { blocks: frames - spare - ahead, ahead, frames }
}

impl Cache {
    /// Metrics of the cache.
    pub const METRICS: &[Metric<Self>] = &[Metric::gauge(
        "flowstone_cache_target_bytes",
        "Bytes that the cache may hold now",
        |it| it.target_bytes() as f64,
    )];

    /// Least size in bytes.
    pub const BYTES_MIN: u64 = 1 << 20;
    /// Greatest size: places and frames are numbered by 32 bits, and there are several places per
    /// frame (MultiCache's counts are cut short).
    pub const BYTES_MAX: u64 = 1 << 42;

    /// Makes a cache that takes up to `bytes` bytes, at least [`BYTES_MIN`](Self::BYTES_MIN), as
    /// blocks come; its metadata takes about 2 % more, and buffers for read-ahead a 64th, up to 16
    /// MiB.
    pub fn new(bytes: u64, kind: PolicyKind) -> io::Result<Self> {
        Self::with_key(bytes, kind, random_key())
    }

    /// The same with a threshold for the rules of MultiCache.
    pub(crate) fn with_threshold(bytes: u64, kind: PolicyKind, threshold: f64) -> io::Result<Self> {
        Self::make(bytes, kind, threshold, random_key())
    }

    /// The same with a fixed `key` for the sample of the default policy, for reproducible results.
    pub fn with_key(bytes: u64, kind: PolicyKind, key: u64) -> io::Result<Self> {
        Self::make(bytes, kind, FREQ_THRESHOLD, key)
    }

    fn make(bytes: u64, kind: PolicyKind, threshold: f64, key: u64) -> io::Result<Self> {
        let bytes = bytes.clamp(Self::BYTES_MIN, Self::BYTES_MAX);
        let frames = usize::try_from(bytes).map_err(io::Error::other)? / BLOCK_BYTES;
        let Target { blocks, ahead, .. } = target_of(frames);
        let policy = kind.build(blocks, threshold, key);
        let table = Mutex::new(Table::new(policy, frames, ahead));
        let window_max = AtomicUsize::new(ahead / STREAMS_AHEAD);
        let target = AtomicU64::new((frames * BLOCK_BYTES) as u64);
        let memory = Memory::new(frames)?;
        Ok(Self {
            memory,
            staging: Staging::new(frames, ahead / STREAMS_AHEAD),
            table,
            kind,
            frames_max: frames,
            target,
            window_max,
            vms: AtomicUsize::new(0),
        })
    }

    /// Locks the table. To be released soon: every queue of every disk may need it.
    pub(crate) fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the longest read-ahead of a stream, in blocks.
    pub(crate) fn window_max(&self) -> u64 {
        self.window_max.load(Ordering::Relaxed) as u64
    }

    /// Returns its policy.
    pub fn kind(&self) -> PolicyKind {
        self.kind
    }

    /// Returns the bytes of data held.
    pub fn bytes(&self) -> u64 {
        self.table().blocks() * BLOCK_BYTES as u64
    }

    /// Returns the bytes that it may take for data now.
    pub fn target_bytes(&self) -> u64 {
        self.target.load(Ordering::Relaxed)
    }

    /// Returns the bytes of host memory that it has for data.
    pub fn resident_bytes(&self) -> u64 {
        (self.table().resident() * BLOCK_BYTES) as u64
    }

    /// Sets the bytes that it may take for data, at least [`BYTES_MIN`](Self::BYTES_MIN) and at
    /// most the size at construction. If that is no more than before, the excess has been returned
    /// to the host when this returns, except for fills in flight at that time, which the next call
    /// returns. Only one thread at a time may call this.
    pub fn set_target(&self, bytes: u64) {
        let frames =
            usize::try_from(bytes.max(Self::BYTES_MIN)).unwrap_or(usize::MAX) / BLOCK_BYTES;
        let target = target_of(frames.min(self.frames_max));
        let bytes = (target.frames * BLOCK_BYTES) as u64;
        let before = self.target.swap(bytes, Ordering::Relaxed);
        self.window_max.store(target.ahead / STREAMS_AHEAD, Ordering::Relaxed);
        self.staging.resize(target.frames);
        if bytes > before {
            return self.table().grow(target);
        }
        let mut more = true;
        while more {
            let mut idle;
            (idle, more) = self.table().shrink(&self.memory, target);
            // Without the lock: the kernel takes its time.
            self.memory.give_back(&mut idle);
            self.table().returned(&idle);
        }
    }

    /// Returns the number of ghosts: blocks that the policy remembers without their data.
    pub fn ghosts(&self) -> u64 {
        self.table().policy.ghosts() as u64
    }

    /// Returns the estimated LRU hit ratio of a cache of `bytes` bytes, up to twice the largest
    /// size, from recent accesses; `None` until enough accesses are sampled.
    pub fn hit_ratio_of(&self, bytes: u64) -> Option<f64> {
        let blocks = usize::try_from(bytes).unwrap_or(usize::MAX) / BLOCK_BYTES;
        let table = self.table();
        table.curve.is_known().then(|| table.curve.hit_ratio(blocks))
    }

    /// Returns the same with each VM counted by its weight, not by its rate of accesses, for the
    /// blocks that the default policy would keep of each. Policies that do not weigh VMs count
    /// accesses.
    pub fn weighed_hit_ratio_of(&self, bytes: u64) -> Option<f64> {
        let frames = usize::try_from(bytes).unwrap_or(usize::MAX) / BLOCK_BYTES;
        let blocks = target_of(frames.min(self.frames_max)).blocks;
        let weighed = self.table().policy.floors().map(|floors| floors.hit_ratio(blocks));
        weighed.unwrap_or_else(|| self.hit_ratio_of(bytes))
    }

    /// Reports the time since the last call: recent accesses of VMs decay with it.
    pub fn pass(&self, time: Duration) {
        let passes = mutated("cache.pass.no-time-passes", true, false);
        if passes {
            self.table().policy.pass(time);
        }
    }

    /// Returns the number of known VMs.
    pub fn vms(&self) -> usize {
        self.vms.load(Ordering::Relaxed)
    }

    /// Sets the VMs.
    pub fn set_vms(&self, vms: Vms) {
        self.vms.store(vms.len(), Ordering::Relaxed);
        self.table().policy.set_vms(&Arc::new(vms));
    }

    /// Drops all blocks of a disk, whose requests have all completed.
    pub(crate) fn forget_disk(&self, number: u32) {
        let end = BlockId::of_disk(number, BlockId::NUMBER_MAX);
        let mut from = Some(BlockId::of_disk(number, 0));
        // In steps, so that other disks get the lock in between.
        while let Some(start) = from {
            from = self.table().forget_some(&self.memory, start..end);
        }
        self.table().forget_disk(number);
    }

    /// Returns a disk's use of the cache.
    pub fn disk(&self, number: u32) -> DiskUse {
        *self.table().disk(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two equal VMs; this one uses `set` blocks `times` times each.
    fn use_blocks(cache: &Cache, vm: u32, set: u64, times: u64) {
        let mut table = cache.table();
        for at in 0..set * times {
            let block = BlockId::of_disk(vm, at % set);
            table.begin_write(&cache.memory, block, false);
            table.end_change(block..BlockId(block.0 + 1));
        }
    }

    fn shared(kind: PolicyKind) -> Cache {
        let cache = Cache::new(Cache::BYTES_MIN, kind).unwrap();
        let size = crate::VmSize { cpus: 1, memory: 1 };
        cache.set_vms(Vms::new(&[size; 2], [(0, 0), (1, 1)]));
        cache
    }

    /// A VM with few accesses makes the joint estimate unknown, until they are long ago.
    #[test]
    fn the_time_that_passes_is_told_to_the_policy() {
        let cache = shared(PolicyKind::Adaptive);
        let ratio = || cache.weighed_hit_ratio_of(Cache::BYTES_MIN);
        use_blocks(&cache, 0, 50, 100);
        use_blocks(&cache, 1, 90, 1);
        assert_eq!(ratio(), None);
        cache.pass(Duration::from_secs(600));
        use_blocks(&cache, 0, 50, 10);
        assert!(ratio().is_some_and(|ratio| ratio > 0.9), "{:?}", ratio());
    }

    #[test]
    fn policies_that_treat_vms_alike_count_accesses() {
        let cache = shared(PolicyKind::Lru);
        use_blocks(&cache, 0, 50, 100);
        use_blocks(&cache, 1, 90, 1);
        let weighed = cache.weighed_hit_ratio_of(Cache::BYTES_MIN);
        assert_eq!(weighed, cache.hit_ratio_of(Cache::BYTES_MIN));
        assert!(weighed.is_some());
    }

    /// Regression: the blocks, and 32 KiB of words, of every former disk were kept.
    #[test]
    fn nothing_stays_of_a_disk_that_has_gone() {
        let cache = shared(PolicyKind::Adaptive);
        use_blocks(&cache, 1, 50, 2);
        for block in 0..50 {
            let block = BlockId::of_disk(1, block);
            let mut table = cache.table();
            if let crate::table::Found::Fill(fill) = table.read(&cache.memory, block) {
                table.end_fill(&cache.memory, fill, true);
            }
        }
        let held = cache.disk(1).blocks;
        assert!(held > 0 && cache.bytes() == held * BLOCK_BYTES as u64);
        cache.forget_disk(1);
        assert_eq!((cache.disk(1), cache.bytes()), (DiskUse::default(), 0));
        // Its number can be reused.
        let found = cache.table().read(&cache.memory, BlockId::of_disk(1, 7));
        assert!(matches!(found, crate::table::Found::Fill(_)));
    }
}
