//! Checkpoints. The order of steps, and why it loses nothing: docs/format.md section 7.

use std::collections::BTreeSet;

use flowstone_block::{AlignedBuf, Errno, Outcome, mutated};
use flowstone_log_format::{
    Address, BLOCK_BYTES, Entry, HEADS, HeadPlace, Kind, LEAF_ON_DISK_BLOCKS, LIFETIME_CLEANED,
    LIFETIME_COLD, LIFETIME_MAP, LeafPlace, RecordBuilder, Root, RootPlace, SegmentId, SegmentNote,
    Superblock, blocks_of_sectors, root_blocks,
};
use flowstone_log_store::segments::{LOOK_MOST, Segment, State};
use tracing::error;

use super::Writer;
use crate::log::append::Health;
use crate::log::reserve::View;
use crate::maintenance::Progress;
use crate::volume::map::LEAF_BLOCKS;

/// The kind of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointKind {
    /// While guests go on writing.
    Running,
    /// At close: nothing is appended after it.
    Last,
}

/// Segments that a checkpoint frees once it is durable.
struct Frozen {
    /// Pinned segments that were closed when it began.
    closed: Vec<SegmentId>,
    /// Segments without live blocks.
    dead: Vec<SegmentId>,
    /// Blocks appended since the previous checkpoint.
    appended: u64,
}

impl Writer {
    /// Writes all committed changes to the map on disk, and frees dead segments.
    pub fn checkpoint(&mut self, kind: CheckpointKind) -> Outcome {
        let ends = mutated("log.rate.holds-during-checkpoints", true, false);
        if ends {
            self.log.end_copying();
        }
        let (next, frozen) = self.freeze();
        let changed = self.volume.map.take_changed(self.volume.blocks());
        let made = self.make_durable(next, &changed, &frozen.dead, kind);
        match made {
            Ok(()) => self.finish_checkpoint(frozen),
            Err(_) => {
                changed.iter().for_each(|leaf| self.volume.map.touch(*leaf));
                self.keep_dead(&frozen.dead);
                let mut state = self.log.append_state();
                state.accounting_mut().undo_checkpoint(frozen.appended);
                state.segments_mut().keep_pinned(frozen.closed);
            }
        }
        made
    }

    /// The same. A failure is logged, and ends the wait of requests for room.
    pub fn try_checkpoint(&mut self) -> Progress {
        match self.checkpoint(CheckpointKind::Running) {
            Ok(()) => Progress::Made,
            Err(errno) => {
                error!("{}: a checkpoint failed: {errno}", self.log.name);
                self.log.give_up_waiting(errno);
                Progress::Idle
            }
        }
    }

    /// Steps 2 to 4.
    fn make_durable(
        &mut self,
        mut next: Superblock,
        changed: &[u32],
        dead: &[SegmentId],
        kind: CheckpointKind,
    ) -> Outcome {
        self.write_leaves(changed)?;
        next.root = self.write_root(dead)?;
        self.publish(next, dead, kind)
    }

    /// Step 1: determines the content of the checkpoint, and the segments it will free.
    fn freeze(&mut self) -> (Superblock, Frozen) {
        let mut state = self.log.append_state();
        let streams = self.log.shape.streams as usize;
        let mut heads = [HeadPlace::default(); HEADS];
        heads[..streams].copy_from_slice(&state.committed_heads()[..streams]);
        for lifetime in LIFETIME_CLEANED..=LIFETIME_COLD {
            if let Some(stream) = self.streams.of(lifetime) {
                heads[usize::from(lifetime)] = stream.place;
            }
        }
        let closed = state.segments_mut().take_pinned();
        let dead = state.segments_mut().take_dead();
        let appended = state.accounting_mut().begin_checkpoint();
        let superblock = Superblock {
            segments: state.segments().limit(),
            next_sequence: state.committed(),
            clock: state.accounting().clock(),
            totals: state.accounting().totals(),
            heads,
            streams: self.log.shape.streams,
            ..self.superblock.clone()
        };
        drop(state);
        (superblock, Frozen { closed, dead: dead.in_order(), appended })
    }

    /// Step 2, leaves. Their old copies stay intact until the new ones are durable.
    fn write_leaves(&mut self, changed: &[u32]) -> Outcome {
        let payload_max = self.log.shape.record_payload_max().max(LEAF_ON_DISK_BLOCKS);
        let mut builder = RecordBuilder::new(payload_max);
        let mut bytes = AlignedBuf::zeroed(LEAF_ON_DISK_BLOCKS as usize * BLOCK_BYTES);
        // The part of the disk cut off by a resize maps nothing, and has no leaves.
        let leaves = blocks_of_sectors(self.superblock.capacity_sectors).div_ceil(LEAF_BLOCKS);
        let cut_off = self.leaves.split_off(&(leaves as u32));
        self.outdated.extend(cut_off.into_values().map(|old| (old.address, LEAF_ON_DISK_BLOCKS)));
        for &leaf in changed {
            if self.volume.map.copy_leaf(leaf, &mut bytes) == 0 {
                if let Some(old) = self.leaves.remove(&leaf) {
                    self.outdated.push((old.address, LEAF_ON_DISK_BLOCKS));
                }
                continue;
            }
            if !builder.has_room_for(LEAF_ON_DISK_BLOCKS) {
                self.append_leaves(&mut builder)?;
            }
            let checksum = crc32c::crc32c(&bytes);
            builder.push(Entry::Leaf { leaf, checksum }).copy_from_slice(&bytes);
        }
        self.append_leaves(&mut builder)
    }

    fn append_leaves(&mut self, builder: &mut RecordBuilder) -> Outcome {
        if builder.entries().is_empty() {
            return Ok(());
        }
        let header = self.append(LIFETIME_MAP, Kind::Map, 0, builder)?;
        let segment = self.log.shape.segment_of(header);
        self.log.append_state().segments_mut().gain(segment, builder.payload());
        let mut address = header.forward(1);
        for entry in builder.entries() {
            if let Entry::Leaf { leaf, checksum } = *entry
                && let Some(old) = self.leaves.insert(leaf, LeafPlace { leaf, address, checksum })
            {
                self.outdated.push((old.address, LEAF_ON_DISK_BLOCKS));
            }
            address = address.forward(entry.payload_blocks());
        }
        builder.clear();
        Ok(())
    }

    /// Step 2, root.
    fn write_root(&mut self, dead: &[SegmentId]) -> Result<RootPlace, Errno> {
        let leaves: Vec<LeafPlace> = self.leaves.values().copied().collect();
        let dead: BTreeSet<SegmentId> = dead.iter().copied().collect();
        let mut most = self.log.append_state().segments().used() + 1;
        // The root must name its own segment: make sure of its room first. Guests may have opened
        // so many others by the time they are noted that it needs more.
        let segments = loop {
            let blocks_most = root_blocks(leaves.len() as u64, u64::from(most));
            self.reserve(LIFETIME_MAP, 1 + blocks_most as u32)?;
            let segments = self.segment_notes(&dead);
            most = segments.len() as u32;
            let fits = root_blocks(leaves.len() as u64, u64::from(most)) <= blocks_most;
            let fits = mutated("log.checkpoint.root-outgrows-its-room", fits, true);
            if fits {
                break segments;
            }
        };
        let bytes = Root { leaves, segments }.encode();
        let blocks = (bytes.len() / BLOCK_BYTES) as u32;
        let checksum = crc32c::crc32c(&bytes);
        let mut builder = RecordBuilder::new(blocks);
        builder.push(Entry::Root { blocks, checksum }).copy_from_slice(&bytes);
        let header = self.append(LIFETIME_MAP, Kind::Map, 0, &mut builder)?;
        let segment = self.log.shape.segment_of(header);
        self.log.append_state().segments_mut().gain(segment, blocks);
        if self.root.blocks > 0 {
            self.outdated.push((self.root.address, self.root.blocks));
        }
        let root =
            RootPlace { address: header.forward(1), blocks, checksum, bytes: bytes.len() as u64 };
        self.root = root;
        Ok(root)
    }

    /// Notes the segments in use, a few per hold of the log's lock. What was in use when the
    /// checkpoint began is so until this thread frees it; records in segments that guests open
    /// meanwhile are replayed, whether these are noted or not.
    fn segment_notes(&self, dead: &BTreeSet<SegmentId>) -> Vec<SegmentNote> {
        let in_use = |state| matches!(state, State::Open | State::Sealed | State::Dead);
        let mut notes = Vec::new();
        let mut first = SegmentId::new(1);
        loop {
            let few: Vec<_> = self.log.append_state().segments().few_from(first).collect();
            let Some((last, _)) = few.last() else { return notes };
            first = last.next();
            let used = few.iter().filter(|(number, it)| in_use(it.state) && !dead.contains(number));
            notes.extend(used.map(|(number, segment)| SegmentNote {
                segment: *number,
                lifetime: u32::from(segment.lifetime),
                incarnation: segment.incarnation,
                birth: segment.birth,
            }));
            // Guests of a test may go on here.
            #[cfg(test)]
            crate::tests::run_hook();
        }
    }

    /// Steps 3 and 4: everything that the superblock names becomes durable before the superblock
    /// does.
    fn publish(&mut self, next: Superblock, dead: &[SegmentId], kind: CheckpointKind) -> Outcome {
        let running = mutated("log.checkpoint.superblock-before-sync-of-map", true, false);
        let last = mutated("log.close.clean-before-sync", true, false);
        let syncs = if kind == CheckpointKind::Last { last } else { running };
        if syncs {
            self.space.sync()?;
        }
        let mut superblock = next;
        {
            let mut state = self.log.append_state();
            state.mark_durable_before(superblock.next_sequence);
            let is_all = state.next_sequence() == superblock.next_sequence;
            let is_all = mutated("log.close.clean-beside-records", is_all, true);
            superblock.clean = kind == CheckpointKind::Last && is_all;
            if superblock.clean {
                // A queue that still exists must not append to the image.
                self.log.change_health(&mut state, Health::Stopped);
            }
            superblock.totals.live_blocks = self.volume.map.mapped();
            superblock.totals.used_segments =
                u64::from(state.segments().used()).saturating_sub(dead.len() as u64);
            superblock.segments =
                superblock.segments.max(state.segments().highest_used().get() + 1);
        }
        self.write_superblock(superblock)
    }

    /// Step 5.
    fn finish_checkpoint(&mut self, frozen: Frozen) {
        self.streams.become_replayable();
        self.log.append_state().set_generation(self.superblock.generation);
        for few in frozen.closed.chunks(LOOK_MOST) {
            self.log.append_state().segments_mut().unpin(few);
        }
        for few in std::mem::take(&mut self.outdated).chunks(LOOK_MOST) {
            let mut state = self.log.append_state();
            for (address, blocks) in few {
                let segment = self.log.shape.segment_of(*address);
                state.segments_mut().lose_many(segment, *blocks);
            }
        }
        self.audit();
        let mut dead = frozen.dead;
        let takes_more = mutated("log.checkpoint.frees-what-died-meanwhile", false, true);
        if takes_more {
            let died = self.log.append_state().segments_mut().take_dead();
            dead.extend(died.in_order());
        }
        self.release(&dead);
    }

    /// Debug builds: checks the counts of live blocks against the map.
    fn audit(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        let state = self.log.append_state();
        state.segments().audit();
        let mut live = std::collections::BTreeMap::new();
        let mut count = |address: Address, blocks: u32| {
            *live.entry(self.log.shape.segment_of(address)).or_insert(0u32) += blocks;
        };
        let mapped = self.volume.map.all_mapped(self.volume.blocks());
        mapped.for_each(|(_, map_entry)| count(map_entry.address(), 1));
        self.leaves.values().for_each(|place| count(place.address, LEAF_ON_DISK_BLOCKS));
        count(self.root.address, self.root.blocks);
        for (number, segment) in state.segments().iter() {
            let counted = live.get(&number).copied().unwrap_or(0);
            assert_eq!(segment.live, counted, "live blocks of segment {number}: {segment:?}");
        }
    }

    /// Returns whether a checkpoint frees the dead segments at a lower cost than cleaning this
    /// victim.
    pub fn is_checkpoint_cheaper(&self, view: &View, victim: Option<&Segment>) -> bool {
        let leaves = u64::from(self.volume.map.changed_count());
        let blocks = leaves * u64::from(1 + LEAF_ON_DISK_BLOCKS) + u64::from(self.root.blocks);
        view.checkpoint_is_cheaper(blocks, victim.map(|it| it.live))
    }
}
