//! Writes the maintenance worker's part of the log, copies and maps, and the superblocks that name
//! it; frees segments.

mod checkpoint;
mod map_segments;
mod sorted;
mod space;
mod stream;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use flowstone_block::{Outcome, mutated};
use flowstone_log_format::{Address, RootPlace, SegmentId, Superblock};
use flowstone_log_store::segments::LOOK_MOST;

use super::Progress;
use crate::load::LeafPlaces;
use crate::log::Log;
use crate::volume::Volume;

pub use self::checkpoint::CheckpointKind;
pub use self::sorted::{moves_most, next_moves};
pub use self::space::Space;
pub use self::stream::{AppendStream, Move, Streams};

/// Interval of checkpoints, in multiples of the size of the map, since a checkpoint may write the
/// whole map; and its bounds in blocks of log: a start after a crash replays the log, half a
/// gigabyte in a second.
const INTERVAL_MAPS: u64 = 40;
const INTERVAL_MIN_BLOCKS: u64 = (512 << 20) / 4096;
const INTERVAL_MAX_BLOCKS: u64 = (4 << 30) / 4096;

/// Maximum duration of a sync between two victims during which writes stay held by cleaning; for
/// longer syncs they are released.
const HELD_MOST: Duration = Duration::from_millis(1);

/// See the module.
pub struct Writer {
    pub log: Arc<Log>,
    volume: Arc<Volume>,
    pub space: Space,
    pub streams: Streams,
    pub superblock: Superblock,
    pub leaves: LeafPlaces,
    root: RootPlace,
    /// Addresses and lengths of leaves and roots that the newest superblock still names and the
    /// next will not.
    outdated: Vec<(Address, u32)>,
    /// Duration of the last sync that freed segments.
    sync_took: Duration,
}

impl Writer {
    pub fn new(
        (log, volume): (Arc<Log>, Arc<Volume>),
        superblock: Superblock,
        leaves: LeafPlaces,
    ) -> io::Result<Self> {
        Ok(Self {
            space: Space::new(Arc::clone(&log), Arc::clone(&volume))?,
            streams: Streams::new(Arc::clone(&log), Arc::clone(&volume)),
            log,
            volume,
            root: superblock.root,
            superblock,
            leaves,
            outdated: Vec::new(),
            sync_took: Duration::MAX,
        })
    }

    /// Allocates host space for a head or a reserve segment, if one is wanted.
    pub fn provide(&mut self) -> Progress {
        self.space.provide(self.superblock.next_sequence)
    }

    /// Returns the interval of checkpoints in blocks of log.
    pub fn interval(&self) -> u64 {
        let map = self.leaves.len() as u64 * 4 + u64::from(self.root.blocks);
        (INTERVAL_MAPS * map).clamp(INTERVAL_MIN_BLOCKS, INTERVAL_MAX_BLOCKS)
    }

    /// Writes this superblock as the newest one.
    pub fn write_superblock(&mut self, mut superblock: Superblock) -> Outcome {
        superblock.generation += 1;
        superblock.written_at = self.log.clock.calendar().as_secs();
        // If this fails, the next attempt has the same generation, and so goes to the same slot:
        // the other one holds the valid superblock.
        self.space.store.write_superblock(&superblock)?;
        let syncs = mutated("log.checkpoint.frees-before-superblock-sync", true, false);
        if syncs {
            self.space.sync()?;
        }
        self.superblock = superblock;
        Ok(())
    }

    /// Frees dead segments that need no checkpoint, after a sync that makes durable what replaced
    /// their blocks.
    pub fn release_freeable(&mut self) -> Outcome {
        if self.sync_took > HELD_MOST {
            self.log.end_copying();
        }
        let dead = self.log.append_state().segments_mut().take_freeable();
        let mut dead = dead.in_order();
        let start = self.log.clock.now();
        let syncs = mutated("log.free.skips-sync", true, false);
        let synced = if syncs { self.space.sync() } else { Ok(()) };
        self.sync_took = self.log.clock.since(start);
        let takes_more = mutated("log.free.frees-what-died-during-the-sync", false, true);
        if takes_more {
            let died = self.log.append_state().segments_mut().take_freeable();
            dead.extend(died.in_order());
        }
        if let Err(errno) = synced {
            self.keep_dead(&dead);
            return Err(errno);
        }
        self.release(&dead);
        Ok(())
    }

    fn keep_dead(&self, dead: &[SegmentId]) {
        dead.chunks(LOOK_MOST)
            .for_each(|few| self.log.append_state().segments_mut().keep_dead(few));
    }

    /// Frees segments that nothing on the medium refers to any more.
    fn release(&mut self, dead: &[SegmentId]) {
        let keep = self.space.recycled_kept_in_use(self.interval());
        let mut released = Vec::new();
        for few in dead.chunks(LOOK_MOST) {
            let mut state = self.log.append_state();
            released.extend_from_slice(state.segments_mut().release_dead(few, keep));
        }
        self.space.punch(&released);
        self.log.announce_room();
    }
}
