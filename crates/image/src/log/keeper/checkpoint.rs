//! Checkpoints. The order of steps is docs/format.md section 7, and so is why it loses nothing.

use std::time::{SystemTime, UNIX_EPOCH};

use flowstone_block::{AlignedBuf, Errno, Outcome, mutant};

use super::Keeper;
use super::output::{Gather, Output};
use crate::log::address::{Address, BLOCK_BYTES};
use crate::log::map::LEAF_BLOCKS;
use crate::log::policy::{CLASS_CLEANED, CLASS_COLD, CLASS_MAP};
use crate::log::record::{Entry, Kind, LEAF_ON_DISK_BLOCKS};
use crate::log::root::{LeafPlace, Root, SegmentNote};
use crate::log::segments::State;
use crate::log::shape::{blocks_of_sectors, root_blocks};
use crate::log::superblock::{HEADS, HeadPlace, RootPlace, Superblock};
use crate::log::tail::Health;

/// When a checkpoint is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointKind {
    /// While guests go on.
    Running,
    /// At the end: nothing is appended after it.
    Last,
}

/// What a checkpoint will free and forget once it is durable.
struct Frozen {
    /// Segments that nothing was being appended to.
    closed: Vec<u32>,
    /// Those of them without live blocks.
    dead: Vec<u32>,
    /// Blocks appended since the checkpoint before.
    appended: u64,
}

impl Keeper {
    /// Makes everything that has committed part of the map on disk, and frees what is dead.
    pub fn checkpoint(&mut self, kind: CheckpointKind) -> Outcome {
        let (next, frozen) = self.freeze();
        let changed = self.core.map.take_changed(self.core.blocks());
        let made = self.make_durable(next, &changed, &frozen.dead, kind);
        match made {
            Ok(()) => self.finish_checkpoint(frozen),
            Err(_) => {
                changed.iter().for_each(|leaf| self.core.map.touch(*leaf));
                let mut tail = self.core.tail();
                tail.changed = true;
                tail.since_checkpoint += frozen.appended;
                tail.segments.keep_dead(frozen.dead);
            }
        }
        made
    }

    /// Steps 2 to 4.
    fn make_durable(
        &mut self,
        mut next: Superblock,
        changed: &[u32],
        dead: &[u32],
        kind: CheckpointKind,
    ) -> Outcome {
        self.write_leaves(changed)?;
        next.root = self.write_root(dead)?;
        self.publish(next, dead, kind)
    }

    /// Step 1: what the checkpoint will say, and which segments it will free.
    fn freeze(&mut self) -> (Superblock, Frozen) {
        let mut tail = self.core.tail();
        let streams = self.core.shape.streams as usize;
        let mut heads = [HeadPlace::default(); HEADS];
        heads[..streams].copy_from_slice(&tail.committed_heads()[..streams]);
        for class in CLASS_CLEANED..=CLASS_COLD {
            if let Some(output) = self.outputs[usize::from(class)] {
                let Output { serial, segment, block, .. } = output;
                heads[usize::from(class)] = HeadPlace { serial, segment, block };
            }
        }
        let frozen = Frozen {
            closed: tail.segments.closed(),
            dead: tail.segments.take_dead(),
            appended: std::mem::take(&mut tail.since_checkpoint),
        };
        tail.changed = false;
        let superblock = Superblock {
            segments: tail.segments.limit(),
            next_sequence: tail.committed(),
            clock: tail.clock,
            totals: tail.totals,
            heads,
            ..self.superblock.clone()
        };
        (superblock, frozen)
    }

    /// Step 2, leaves. Their old places stay as they are until the new ones are durable.
    fn write_leaves(&mut self, changed: &[u32]) -> Outcome {
        let payload_max = self.core.shape.record_payload_max().max(LEAF_ON_DISK_BLOCKS);
        let mut gather = Gather::new(payload_max);
        let mut bytes = AlignedBuf::zeroed(LEAF_ON_DISK_BLOCKS as usize * BLOCK_BYTES);
        // A part of the disk that has been cut off maps nothing, and has no leaves.
        let leaves = blocks_of_sectors(self.superblock.capacity_sectors).div_ceil(LEAF_BLOCKS);
        let cut_off = self.leaves.split_off(&(leaves as u32));
        self.outdated.extend(cut_off.into_values().map(|(old, _)| (old, LEAF_ON_DISK_BLOCKS)));
        for &leaf in changed {
            if self.core.map.copy_leaf(leaf, &mut bytes) == 0 {
                if let Some((old, _)) = self.leaves.remove(&leaf) {
                    self.outdated.push((old, LEAF_ON_DISK_BLOCKS));
                }
                continue;
            }
            if !gather.has_room_for(LEAF_ON_DISK_BLOCKS) {
                self.append_leaves(&mut gather)?;
            }
            let checksum = crc32c::crc32c(&bytes);
            gather.push(Entry::Leaf { leaf, checksum }).copy_from_slice(&bytes);
        }
        self.append_leaves(&mut gather)
    }

    fn append_leaves(&mut self, gather: &mut Gather) -> Outcome {
        if gather.entries.is_empty() {
            return Ok(());
        }
        let header = self.append(CLASS_MAP, Kind::Map, 0, gather)?;
        let segment = self.core.shape.segment_of(header);
        self.core.tail().segments.gain(segment, gather.payload);
        let mut address = header.forward(1);
        for entry in &gather.entries {
            if let Entry::Leaf { leaf, checksum } = *entry
                && let Some((old, _)) = self.leaves.insert(leaf, (address, checksum))
            {
                self.outdated.push((old, LEAF_ON_DISK_BLOCKS));
            }
            address = address.forward(entry.payload_blocks());
        }
        gather.clear();
        Ok(())
    }

    /// Step 2, root.
    fn write_root(&mut self, dead: &[u32]) -> Result<RootPlace, Errno> {
        let leaf = |(leaf, (address, checksum)): (&u32, &(Address, u32))| LeafPlace {
            leaf: *leaf,
            address: *address,
            checksum: *checksum,
        };
        let leaves: Vec<LeafPlace> = self.leaves.iter().map(leaf).collect();
        // The root's own segment must be among those it names: make sure of its room first.
        let most = self.core.tail().segments.used() + 1;
        let blocks_most = root_blocks(leaves.len() as u64, u64::from(most)) as u32;
        self.reserve_output(CLASS_MAP, 1 + blocks_most)?;
        let segments = self.segment_notes(dead);
        let bytes = Root { leaves, segments }.encode();
        let blocks = (bytes.len() / BLOCK_BYTES) as u32;
        let checksum = crc32c::crc32c(&bytes);
        let mut gather = Gather::new(blocks);
        gather.push(Entry::Root { blocks, checksum }).copy_from_slice(&bytes);
        let header = self.append(CLASS_MAP, Kind::Map, 0, &mut gather)?;
        let segment = self.core.shape.segment_of(header);
        self.core.tail().segments.gain(segment, blocks);
        if self.root.blocks > 0 {
            self.outdated.push((self.root.address, self.root.blocks));
        }
        let root =
            RootPlace { address: header.forward(1), blocks, checksum, bytes: bytes.len() as u64 };
        self.root = root;
        Ok(root)
    }

    fn segment_notes(&self, dead: &[u32]) -> Vec<SegmentNote> {
        let tail = self.core.tail();
        let in_use = |state| matches!(state, State::Open | State::Sealed | State::Dead);
        tail.segments
            .iter()
            .filter(|(number, segment)| in_use(segment.state) && !dead.contains(number))
            .map(|(number, segment)| SegmentNote {
                segment: number,
                class: u32::from(segment.class),
                serial: segment.serial,
                birth: segment.birth,
            })
            .collect()
    }

    /// Steps 3 and 4: everything the superblock will name is durable before it is.
    fn publish(&mut self, next: Superblock, dead: &[u32], kind: CheckpointKind) -> Outcome {
        let skips = match kind {
            CheckpointKind::Running => mutant("log.checkpoint.superblock-before-sync-of-map"),
            CheckpointKind::Last => mutant("log.close.clean-before-sync"),
        };
        if !skips {
            self.sync()?;
        }
        let mut superblock = next;
        {
            let mut tail = self.core.tail();
            tail.durable = tail.durable.max(superblock.next_sequence);
            superblock.clean =
                kind == CheckpointKind::Last && tail.next_sequence() == superblock.next_sequence;
            if superblock.clean {
                // A queue that is still there must not append to it.
                tail.health = Health::Stopped;
                self.core.show(&tail);
            }
            superblock.totals.live_blocks = self.core.map.mapped();
            superblock.totals.used_segments =
                u64::from(tail.segments.used()).saturating_sub(dead.len() as u64);
            superblock.segments = superblock.segments.max(tail.segments.highest_used() + 1);
        }
        self.write_superblock(superblock)
    }

    /// Makes this the newest superblock.
    pub fn write_superblock(&mut self, mut superblock: Superblock) -> Outcome {
        superblock.generation += 1;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        superblock.written_at = now.as_secs();
        let mut block = AlignedBuf::zeroed(BLOCK_BYTES);
        block.copy_from_slice(&superblock.encode());
        // If this fails, the next attempt has the same number, so that it goes to the same slot: the
        // other one holds the superblock that counts.
        self.file.write(superblock.slot().offset(), &mut block)?;
        if !mutant("log.checkpoint.frees-before-superblock-sync") {
            self.sync()?;
        }
        self.superblock = superblock;
        Ok(())
    }

    pub fn sync(&mut self) -> Outcome {
        let mut outcome = self.file.sync();
        if self.core.sync.has_failed() {
            // The host reports what it has lost once, and a queue has heard it.
            outcome = Err(Errno::IO);
        }
        if outcome.is_err() && !mutant("log.sync.forgets-failure") {
            self.core.sync.fail();
            self.core.wake_all();
        }
        outcome
    }

    /// Step 5.
    fn finish_checkpoint(&mut self, frozen: Frozen) {
        self.outputs.iter_mut().flatten().for_each(|output| output.anchored = true);
        let outdated = std::mem::take(&mut self.outdated);
        {
            let mut tail = self.core.tail();
            tail.generation = self.superblock.generation;
            tail.segments.let_go(&frozen.closed);
            for (address, blocks) in outdated {
                let segment = self.core.shape.segment_of(address);
                tail.segments.lose_many(segment, blocks);
            }
        }
        self.audit();
        let mut dead = frozen.dead;
        if mutant("log.checkpoint.frees-what-died-meanwhile") {
            dead.extend(self.core.tail().segments.take_dead());
        }
        self.release(dead);
    }

    /// Debug builds: the counts of live blocks are what the map says.
    fn audit(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        let tail = self.core.tail();
        let mut live = std::collections::BTreeMap::new();
        let mut count = |address: Address, blocks: u32| {
            *live.entry(self.core.shape.segment_of(address)).or_insert(0u32) += blocks;
        };
        let blocks = self.core.blocks();
        let mut at = 0;
        while let Some(lba) = self.core.map.next_mapped(at..blocks) {
            count(self.core.map.get(lba).address(), 1);
            at = lba + 1;
        }
        self.leaves.values().for_each(|(address, _)| count(*address, LEAF_ON_DISK_BLOCKS));
        count(self.root.address, self.root.blocks);
        for (number, segment) in tail.segments.iter() {
            let counted = live.get(&number).copied().unwrap_or(0);
            assert_eq!(segment.live, counted, "live blocks of segment {number}: {segment:?}");
        }
    }

    /// Frees the dead that need no checkpoint: all that replaced their blocks becomes durable now.
    pub fn release_loose_dead(&mut self) -> Outcome {
        let dead = self.core.tail().segments.take_loose_dead();
        let synced = if mutant("log.free.skips-sync") { Ok(()) } else { self.sync() };
        if let Err(errno) = synced {
            self.core.tail().segments.keep_dead(dead);
            return Err(errno);
        }
        self.release(dead);
        Ok(())
    }

    /// Nothing on the medium leads to these segments any more.
    fn release(&mut self, dead: Vec<u32>) {
        let keep = self.ready_kept_in_use();
        let released = self.core.tail().segments.release_dead(dead, keep);
        self.punch(&released);
        self.tell_room();
    }
}
