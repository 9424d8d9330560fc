//! The cache that all disks of a daemon share.

use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flowstone_block::mutant;

use crate::BLOCK_BYTES;
use crate::frames::Memory;
use crate::names::{BlockId, random_key};
use crate::policy::{FREQ_THRESHOLD, PolicyKind};
use crate::table::{DiskUse, Table, Target};
use crate::vms::Vms;

/// Frames for blocks on their way in or out, beside those that the policy fills: a part of all, and
/// at least so many.
const SPARE_OF: usize = 64;
const SPARE_MIN: usize = 16;
/// Frames for blocks that are read ahead, likewise.
const AHEAD_OF: usize = 32;
const AHEAD_MIN: usize = 32;
/// One stream does not take all of them.
const STREAMS_AHEAD: usize = 4;

/// Memory for blocks of all disks.
pub struct Cache {
    pub(crate) memory: Memory,
    table: Mutex<Table>,
    kind: PolicyKind,
    frames_max: usize,
    /// Bytes that it may take now.
    target: AtomicU64,
    /// Blocks that are read ahead of a stream at most.
    window_max: AtomicUsize,
    /// How many VMs it knows of.
    vms: AtomicUsize,
}

/// How so many frames are shared out.
fn target_of(frames: usize) -> Target {
    let spare = (frames / SPARE_OF).max(SPARE_MIN);
    let ahead = (frames / AHEAD_OF).max(AHEAD_MIN);
    Target { blocks: frames - spare - ahead, ahead, frames }
}

impl Cache {
    /// The least that one can have, in bytes.
    pub const BYTES_MIN: u64 = 1 << 20;
    /// The most: places and frames are numbered by 32 bits, and there are several places for a
    /// frame (the counts of MultiCache are cut short).
    pub const BYTES_MAX: u64 = 1 << 42;

    /// Takes `bytes` at most, at least [`BYTES_MIN`](Self::BYTES_MIN), as blocks come; what is
    /// known of them takes about 2 % more.
    pub fn new(bytes: u64, kind: PolicyKind) -> io::Result<Self> {
        Self::with_key(bytes, kind, random_key())
    }

    /// The same with a threshold for the rules of MultiCache.
    pub(crate) fn with_threshold(bytes: u64, kind: PolicyKind, threshold: f64) -> io::Result<Self> {
        Self::make(bytes, kind, threshold, random_key())
    }

    /// The same each time: `key` decides which blocks the default policy takes for a sample.
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
            table,
            kind,
            frames_max: frames,
            target,
            window_max,
            vms: AtomicUsize::new(0),
        })
    }

    /// What is held. To be let go of soon: every queue of every disk may need it.
    pub(crate) fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks that are read ahead of a stream at most.
    pub(crate) fn window_max(&self) -> u64 {
        self.window_max.load(Ordering::Relaxed) as u64
    }

    /// Decides what is kept.
    pub fn kind(&self) -> PolicyKind {
        self.kind
    }

    /// Bytes of data held.
    pub fn bytes(&self) -> u64 {
        self.table().blocks() * BLOCK_BYTES as u64
    }

    /// Bytes that it may take for data now.
    pub fn target_bytes(&self) -> u64 {
        self.target.load(Ordering::Relaxed)
    }

    /// Bytes of the host's memory that it has for data.
    pub fn resident_bytes(&self) -> u64 {
        (self.table().resident() * BLOCK_BYTES) as u64
    }

    /// Takes at most `bytes` for data from now on, at least [`BYTES_MIN`](Self::BYTES_MIN) and at
    /// most what it was made for. If that is not more than before, the host has the rest back when
    /// this returns, but for blocks that are on their way just then: those are for the next call.
    /// One thread at a time calls this.
    pub fn set_target(&self, bytes: u64) {
        let frames =
            usize::try_from(bytes.max(Self::BYTES_MIN)).unwrap_or(usize::MAX) / BLOCK_BYTES;
        let target = target_of(frames.min(self.frames_max));
        let bytes = (target.frames * BLOCK_BYTES) as u64;
        let before = self.target.swap(bytes, Ordering::Relaxed);
        self.window_max.store(target.ahead / STREAMS_AHEAD, Ordering::Relaxed);
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

    /// Blocks that the policy remembers without their data.
    pub fn ghosts(&self) -> u64 {
        self.table().ghosts()
    }

    /// The part of the accesses of late that a cache of so many bytes, up to twice the largest
    /// size, would have answered by keeping what was used last; nothing while there were too few.
    pub fn hit_ratio_of(&self, bytes: u64) -> Option<f64> {
        let blocks = usize::try_from(bytes).unwrap_or(usize::MAX) / BLOCK_BYTES;
        let table = self.table();
        table.curve.is_known().then(|| table.curve.hit_ratio(blocks))
    }

    /// The same if each VM counts by its weight, for what the default policy would keep of each:
    /// nothing is said by how often a VM accesses the cache. Policies that weigh no VMs count
    /// accesses.
    pub fn weighed_hit_ratio_of(&self, bytes: u64) -> Option<f64> {
        let frames = usize::try_from(bytes).unwrap_or(usize::MAX) / BLOCK_BYTES;
        let blocks = target_of(frames.min(self.frames_max)).blocks;
        let weighed = self.table().weighed_hit_ratio(blocks);
        weighed.unwrap_or_else(|| self.hit_ratio_of(bytes))
    }

    /// So much time has passed since the last call: what a VM has not used of late, others use.
    pub fn pass(&self, time: Duration) {
        if !mutant("cache.pass.no-time-passes") {
            self.table().pass(time);
        }
    }

    /// How many VMs it knows of.
    pub fn vms(&self) -> usize {
        self.vms.load(Ordering::Relaxed)
    }

    /// These are the VMs from now on.
    pub fn set_vms(&self, vms: Vms) {
        self.vms.store(vms.len(), Ordering::Relaxed);
        self.table().set_vms(&Arc::new(vms));
    }

    /// Drops everything of a disk, whose requests have all come back.
    pub(crate) fn forget_disk(&self, number: u32) {
        let end = BlockId::of_disk(number, BlockId::NUMBER_MAX);
        let mut from = Some(BlockId::of_disk(number, 0));
        // In steps: other disks may have the lock in between.
        while let Some(start) = from {
            from = self.table().forget_some(&self.memory, start..end);
        }
        self.table().forget_disk(number);
    }

    /// What is held of a disk.
    pub fn disk(&self, number: u32) -> DiskUse {
        *self.table().disk(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two VMs that are alike; each uses so many blocks so often.
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

    /// A VM that has accessed little hides what is known of others, until that is long ago.
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

    /// Each disk that there ever was kept its blocks, and 32 KiB of words.
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
        // Its number is as good as new.
        let found = cache.table().read(&cache.memory, BlockId::of_disk(1, 7));
        assert!(matches!(found, crate::table::Found::Fill(_)));
    }
}
