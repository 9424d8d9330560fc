//! `compact`: live blocks are rewritten in the order of their LBAs, so that what a guest reads in
//! sequence lies in sequence, and dead space goes back to the host.
//!
//! It needs room: a segment dies only when its last block has moved, so for a while the image may
//! be twice as large, beyond its usual limit. Where the host has no such room, segments are packed
//! instead of sorted: that gives dead space back and leaves the order as it was.

use flowstone_block::{AlignedBuf, Errno, Outcome, mutant};
use flowstone_fileio::FileOffset;

use super::stage::Move;
use super::{CheckpointKind, Maintenance};
use crate::log::address::BLOCK_BYTES;
use crate::log::ids::SegmentId;
use crate::log::policy::LIFETIME_SORTED;
use crate::log::record::{Entry, Kind};
use crate::log::record_builder::RecordBuilder;
use crate::log::reserve::SLACK_SEGMENTS;

/// Blocks read at once, from wherever they lie.
const BATCH_BLOCKS: usize = 1024;
/// So many blocks of the disk, at a multiple of their number, are copied into one record: a request
/// of 128 KiB reads them from one place. A record's header lies between those of two.
const TOGETHER_BLOCKS: u64 = 32;

impl Maintenance {
    /// Puts the whole image in order.
    pub fn compact(&mut self) -> Outcome {
        let limit = self.core.append_state().segments.limit();
        let most = limit.saturating_add(self.sorted_segments());
        self.core.append_state().segments.set_limit(most);
        // The superblock must know of a borrowed segment before it is used: guests may get
        // one, and replay does not follow a seal to where the image has nothing.
        let sorted = self.checkpoint(CheckpointKind::Running).and_then(|()| self.sort());
        self.seal_stream(LIFETIME_SORTED);
        // What has been sorted is kept, even if not all is. Once that is durable there are segments
        // enough for the usual limit, or for nearly that, if all of them are in use.
        let durable = self.checkpoint(CheckpointKind::Running);
        {
            let mut state = self.core.append_state();
            state.segments.set_limit(limit);
            // If it failed, no superblock need know of more.
            if durable.is_ok() {
                let wanted = state.kept_from_writes(&self.core.map) + SLACK_SEGMENTS;
                state.segments.raise_limit_for(wanted, most);
            }
        }
        durable?;
        match sorted {
            Err(Errno::NOSPC) => self.pack(),
            outcome => outcome,
        }?;
        self.checkpoint(CheckpointKind::Running)?;
        self.trim_reserve();
        Ok(())
    }

    /// Segments that all live blocks take, one after the other, with what is kept for checkpoints;
    /// as many as an image can have.
    fn sorted_segments(&self) -> u32 {
        let shape = self.core.shape;
        let wanted = self.core.map.mapped().div_ceil(u64::from(shape.data_blocks_packed())) + 1;
        let most = u64::from(shape.segments_most(self.core.blocks()));
        let state = self.core.append_state();
        let kept = u64::from(state.kept_from_writes(&self.core.map));
        let limit = u64::from(state.segments.limit());
        (wanted + 2 * kept).min(most.saturating_sub(limit)) as u32
    }

    /// Rewrites what is not in order yet.
    fn sort(&mut self) -> Outcome {
        let blocks = self.core.blocks();
        let mut buffer = AlignedBuf::zeroed(moves_most(BATCH_BLOCKS) * BLOCK_BYTES);
        let mut next = 0;
        while let Some(moves) = self.next_moves(&mut next, BATCH_BLOCKS) {
            if !is_in_order(&moves) {
                self.rewrite(&moves, &mut buffer)?;
            }
            self.core.inbox.set_progress(next, blocks);
            if self.core.inbox.is_stopping() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The next live blocks of the disk, in the order of their LBAs, `count` or as many more as
    /// stay together with those.
    pub fn next_moves(&self, next: &mut u64, count: usize) -> Option<Vec<Move>> {
        let end = self.core.blocks();
        let mut moves: Vec<Move> = Vec::with_capacity(moves_most(count));
        while let Some(lba) = self.core.map.next_mapped(*next..end) {
            let goes_along = |last: &Move| last.lba / TOGETHER_BLOCKS == lba / TOGETHER_BLOCKS;
            if moves.len() >= count && !moves.last().is_some_and(goes_along) {
                break;
            }
            moves.push(Move { lba, old: self.core.map.get(lba) });
            *next = lba + 1;
        }
        (!moves.is_empty()).then_some(moves)
    }

    /// Copies these blocks, one after the other.
    fn rewrite(&mut self, moves: &[Move], buffer: &mut AlignedBuf) -> Outcome {
        self.read_blocks(moves, buffer)?;
        self.append_in_order(moves, buffer)
    }

    /// Reads these blocks one behind the other.
    pub fn read_blocks(&mut self, moves: &[Move], buffer: &mut AlignedBuf) -> Outcome {
        let mut reads: Vec<(FileOffset, &mut [u8])> = moves
            .iter()
            .zip(buffer.chunks_exact_mut(BLOCK_BYTES))
            .map(|(moved, target)| (moved.old.address().offset(), target))
            .collect();
        self.file.read_many(&mut reads)
    }

    /// Appends copies of what has been read. No record ends inside a part of the disk that guests
    /// read with one request, as far as that can be.
    pub fn append_in_order(&mut self, moves: &[Move], buffer: &AlignedBuf) -> Outcome {
        let mut builder = RecordBuilder::new(self.core.shape.record_payload_max());
        let mut pending = Vec::new();
        let mut contents = buffer.chunks_exact(BLOCK_BYTES);
        let mut most = 0;
        let together = self.sorted_together_in_record();
        for part in moves.chunk_by(|one, next| one.lba / together == next.lba / together) {
            let count = part.len() as u32;
            if builder.payload() + count > most {
                self.append_sorted(&mut builder, &mut pending)?;
                most = self.sorted_that_fit(count);
            }
            for (moved, block) in part.iter().zip(&mut contents) {
                let checksum = moved.old.checksum();
                if crc32c::crc32c(block) != checksum && !mutant("log.sorted.data-unchecked") {
                    // It was overwritten and its place used again meanwhile, or it is damaged: it
                    // is not moved.
                    continue;
                }
                let entry = Entry::Moved { lba: moved.lba, from: moved.old.address(), checksum };
                builder.push(entry).copy_from_slice(block);
                pending.push(*moved);
            }
        }
        self.append_sorted(&mut builder, &mut pending)
    }

    /// How many blocks of the disk stay in one record, if all of them are live.
    fn sorted_together_in_record(&self) -> u64 {
        TOGETHER_BLOCKS.min(self.core.shape.record_payload_max().into())
    }

    /// How many copies the next record may have, of which `count` stay together: what is left of
    /// the open segment, or a full record in another one.
    fn sorted_that_fit(&self, count: u32) -> u32 {
        let fit = self.copies_that_fit(LIFETIME_SORTED);
        if fit < count { self.core.shape.record_payload_max() } else { fit }
    }

    /// Copies from many segments at once are not replayed: their sources wait for a checkpoint.
    fn append_sorted(&mut self, builder: &mut RecordBuilder, moves: &mut Vec<Move>) -> Outcome {
        if moves.is_empty() {
            return Ok(());
        }
        let sources: Vec<SegmentId> =
            moves.iter().map(|it| self.core.shape.segment_of(it.old.address())).collect();
        let header = match self.append(LIFETIME_SORTED, Kind::Relocated, 0, builder) {
            Err(Errno::NOSPC) => {
                self.checkpoint(CheckpointKind::Running)?;
                self.append(LIFETIME_SORTED, Kind::Relocated, 0, builder)?
            }
            other => other?,
        };
        let mut state = self.core.append_state();
        if !mutant("log.compact.does-not-pin-sources") {
            sources.into_iter().for_each(|segment| state.segments.pin(segment));
        }
        let birth = state.clock;
        drop(state);
        self.apply_moves(LIFETIME_SORTED, header, moves, birth);
        moves.clear();
        builder.clear();
        Ok(())
    }

    /// Cleans every segment that is not packed, where there is no room to sort.
    fn pack(&mut self) -> Outcome {
        let most = self.core.append_state().segments.used();
        for _ in 0..most {
            let Some((victim, segment)) = self.choose_victim() else { break };
            let Err(errno) = self.clean(victim, segment) else { continue };
            let before = self.core.append_state().segments.ready_or_obtainable();
            self.checkpoint(CheckpointKind::Running)?;
            if errno != Errno::NOSPC {
                return Err(errno);
            }
            if self.core.append_state().segments.ready_or_obtainable() <= before {
                // No room to go on with, and nothing lost: the rest stays as it was.
                break;
            }
        }
        Ok(())
    }
}

/// How many blocks [`Maintenance::next_moves`] may return that was asked for `count`.
pub const fn moves_most(count: usize) -> usize {
    count + TOGETHER_BLOCKS as usize - 1
}

/// Whether the blocks lie one after the other already.
fn is_in_order(moves: &[Move]) -> bool {
    moves.windows(2).all(|pair| pair[0].old.address().is_followed_by(pair[1].old.address()))
}
