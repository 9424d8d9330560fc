//! `compact`: rewrites live blocks in LBA order, so that sequential reads of a guest are sequential
//! in the file, and returns dead space to the host.
//!
//! It needs space: a segment dies only when its last block has moved, so for a while the image may
//! be twice as large, beyond its usual limit. If the host lacks that space, segments are packed
//! instead of sorted: that returns dead space and leaves the order as it was.

use flowstone_block::{AlignedBuf, Errno, Outcome, mutant};
use flowstone_fileio::FileOffset;
use flowstone_log_format::{BLOCK_BYTES, Entry, Kind, RecordBuilder, SegmentId};

use super::stage::Move;
use super::{CheckpointKind, Maintenance};
use crate::policy::LIFETIME_SORTED;
use crate::reserve::SLACK_SEGMENTS;

/// Blocks read at once, from any addresses.
const BATCH_BLOCKS: usize = 1024;
/// Aligned group of blocks that is copied into one record: a request of 128 KiB reads them from one
/// place. A record header lies between groups of different records.
const TOGETHER_BLOCKS: u64 = 32;

impl Maintenance {
    /// Puts the whole image in LBA order.
    pub fn compact(&mut self) -> Outcome {
        let limit = self.core.append_state().segments.limit();
        let most = limit.saturating_add(self.sorted_segments());
        self.core.append_state().segments.set_limit(most);
        // The superblock must cover a borrowed segment before it is used: guests may get one, and
        // replay does not follow a seal beyond the end of the image.
        let sorted = self.checkpoint(CheckpointKind::Running).and_then(|()| self.sort());
        self.seal_stream(LIFETIME_SORTED);
        // Sorted blocks are kept, even if sorting is incomplete. Once they are durable there are
        // enough segments for the usual limit, or for nearly that, if all of them are in use.
        let durable = self.checkpoint(CheckpointKind::Running);
        {
            let mut state = self.core.append_state();
            state.segments.set_limit(limit);
            // If the checkpoint failed, no superblock need cover more segments.
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

    /// Returns the segments that all live blocks take in LBA order, plus the reserves; at most as
    /// many as an image can have.
    fn sorted_segments(&self) -> u32 {
        let shape = self.core.shape;
        let wanted = self.core.map.mapped().div_ceil(u64::from(shape.data_blocks_packed())) + 1;
        let most = u64::from(shape.segments_most(self.core.blocks()));
        let state = self.core.append_state();
        let kept = u64::from(state.kept_from_writes(&self.core.map));
        let limit = u64::from(state.segments.limit());
        (wanted + 2 * kept).min(most.saturating_sub(limit)) as u32
    }

    /// Rewrites the blocks that are not in order yet.
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

    /// Returns the next `count` live blocks of the disk, in LBA order, plus the rest of the last
    /// group.
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

    /// Copies these blocks in this order.
    fn rewrite(&mut self, moves: &[Move], buffer: &mut AlignedBuf) -> Outcome {
        self.read_blocks(moves, buffer)?;
        self.append_in_order(moves, buffer)
    }

    /// Reads these blocks into consecutive memory.
    pub fn read_blocks(&mut self, moves: &[Move], buffer: &mut AlignedBuf) -> Outcome {
        let mut reads: Vec<(FileOffset, &mut [u8])> = moves
            .iter()
            .zip(buffer.chunks_exact_mut(BLOCK_BYTES))
            .map(|(moved, target)| (moved.old.address().offset(), target))
            .collect();
        self.file.read_many(&mut reads)
    }

    /// Appends copies of the blocks that were read. As far as possible, no record ends inside a
    /// part of the disk that guests read with one request.
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
                    // It was overwritten and its address reused meanwhile, or it is damaged: it is
                    // not moved.
                    continue;
                }
                let entry = Entry::Moved { lba: moved.lba, from: moved.old.address(), checksum };
                builder.push(entry).copy_from_slice(block);
                pending.push(*moved);
            }
        }
        self.append_sorted(&mut builder, &mut pending)
    }

    /// Returns the number of blocks of the disk that stay in one record, if all of them are live.
    fn sorted_together_in_record(&self) -> u64 {
        TOGETHER_BLOCKS.min(self.core.shape.record_payload_max().into())
    }

    /// Returns the maximum number of copies in the next record, of which `count` stay together: the
    /// rest of the open segment, or a full record in another one.
    fn sorted_that_fit(&self, count: u32) -> u32 {
        let fit = self.copies_that_fit(LIFETIME_SORTED);
        if fit < count { self.core.shape.record_payload_max() } else { fit }
    }

    /// Copies from many segments at once are not replayed: their sources are pinned until a
    /// checkpoint.
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

    /// Cleans every segment that is not packed, when there is no space to sort.
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
                // No space to continue with, and nothing lost: the rest stays as it was.
                break;
            }
        }
        Ok(())
    }
}

/// Returns the maximum number of blocks that [`Maintenance::next_moves`] returns for `count`.
pub const fn moves_most(count: usize) -> usize {
    count + TOGETHER_BLOCKS as usize - 1
}

/// Returns whether the blocks are consecutive in the file already.
fn is_in_order(moves: &[Move]) -> bool {
    moves.windows(2).all(|pair| pair[0].old.address().is_followed_by(pair[1].old.address()))
}
