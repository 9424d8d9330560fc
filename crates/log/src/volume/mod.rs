//! A disk on the log: its size and its map, its discards, its damages and its order.

pub mod map;

use std::sync::Arc;

use flowstone_block::sync::atomic::{AtomicU64, Ordering};
use flowstone_block::{Outcome, Sector, SectorCount, mutated};
use flowstone_image::runtime::discards::DiscardCounters;
use flowstone_image::{DamageList, Flaw};
use flowstone_log_format::{BLOCK_BYTES, BLOCK_SECTORS, MapEntry, blocks_of_sectors};

use self::map::{BlockMap, LEAF_BLOCKS};
use crate::resort::Resorting;

/// See the module.
pub struct Volume {
    pub map: BlockMap,
    /// In sectors; a live resize changes it.
    capacity: AtomicU64,
    pub discards: Arc<DiscardCounters>,
    pub damages: DamageList,
    pub resorting: Resorting,
}

impl Volume {
    pub fn new(capacity: SectorCount, map: BlockMap) -> Self {
        Self {
            map,
            capacity: AtomicU64::new(capacity.get()),
            discards: Arc::default(),
            damages: DamageList::default(),
            resorting: Resorting::default(),
        }
    }

    pub fn capacity(&self) -> SectorCount {
        SectorCount::new(self.capacity.load(Ordering::Relaxed))
    }

    /// Shrinks the disk at once, so that nothing is written beyond the new end, or grows it when
    /// `work` has made the new size durable, so that no record concerns blocks that a crash would
    /// take away again.
    pub fn resize_while(&self, capacity: SectorCount, work: impl FnOnce() -> Outcome) -> Outcome {
        let before = self.capacity();
        let meanwhile = mutated("log.resize.told-before-durable", capacity.min(before), capacity);
        self.set_capacity(meanwhile);
        let resized = work();
        self.set_capacity(if resized.is_ok() { capacity } else { before });
        resized
    }

    fn set_capacity(&self, capacity: SectorCount) {
        self.capacity.store(capacity.get(), Ordering::Relaxed);
    }

    /// Returns the blocks of the disk.
    pub fn blocks(&self) -> u64 {
        blocks_of_sectors(self.capacity().get())
    }

    /// Returns the bytes of the disk that are mapped, limited to the size of the disk (its last
    /// block may be partial).
    pub fn live_bytes(&self) -> u64 {
        (self.map.mapped() * BLOCK_BYTES as u64).min(self.capacity().bytes())
    }

    /// Records that a block of the disk is lost; `name` is the image's.
    pub fn report_damage(&self, name: &str, lba: u64, map_entry: MapEntry, what: &str) {
        let flaw = Flaw::new(what).at(map_entry.address().offset());
        self.damages.add(name, flaw.of(Sector::new(lba * BLOCK_SECTORS)));
    }

    /// Returns the leaves of the map when every block is mapped.
    pub fn leaves(&self) -> u64 {
        self.blocks().div_ceil(LEAF_BLOCKS)
    }
}
