//! `compact`: rewrites live blocks in LBA order, so that sequential reads of a guest are sequential
//! in the file, and returns dead space to the host.
//!
//! It needs space: a segment dies only when its last block has moved, so for a while the image may
//! be twice as large, beyond its usual limit. If the host lacks that space, segments are packed
//! instead of sorted: that returns dead space and leaves the order as it was.

use flowstone_block::{AlignedBuf, Errno, Outcome};
use flowstone_log_format::{BLOCK_BYTES, LIFETIME_SORTED};

use super::Maintenance;
use super::writer::{CheckpointKind, Move, moves_most, next_moves};
use crate::log::reserve::SLACK_SEGMENTS;

/// Blocks read at once, from any addresses.
const BATCH_BLOCKS: usize = 1024;
impl Maintenance {
    /// Puts the whole image in LBA order.
    pub fn compact(&mut self) -> Outcome {
        let limit = self.log.append_state().segments().limit();
        let most = limit.saturating_add(self.sorted_segments());
        self.log.set_limit(most);
        // The superblock must cover a borrowed segment before it is used: guests may get one, and
        // replay does not follow a seal beyond the end of the image.
        let sorted = self.writer.checkpoint(CheckpointKind::Running).and_then(|()| self.sort());
        self.writer.streams.seal(LIFETIME_SORTED);
        // Sorted blocks are kept, even if sorting is incomplete. Once they are durable there are
        // enough segments for the usual limit, or for nearly that, if all of them are in use.
        let durable = self.writer.checkpoint(CheckpointKind::Running);
        self.log.set_limit(limit);
        // If the checkpoint failed, no superblock need cover more segments.
        if durable.is_ok() {
            let kept = self.log.append_state().kept_from_writes(&self.volume);
            self.log.raise_limit_for(kept + SLACK_SEGMENTS, most);
        }
        durable?;
        match sorted {
            Err(Errno::NOSPC) => self.pack(),
            outcome => outcome,
        }?;
        self.writer.checkpoint(CheckpointKind::Running)?;
        self.writer.space.trim_reserve();
        Ok(())
    }

    /// Returns the segments that all live blocks take in LBA order, plus the reserves; at most as
    /// many as an image can have.
    fn sorted_segments(&self) -> u32 {
        let shape = self.log.shape;
        let wanted = self.volume.map.mapped().div_ceil(u64::from(shape.data_blocks_packed())) + 1;
        let most = u64::from(shape.segments_most(self.volume.blocks()));
        let state = self.log.append_state();
        let kept = u64::from(state.kept_from_writes(&self.volume));
        let limit = u64::from(state.segments().limit());
        (wanted + 2 * kept).min(most.saturating_sub(limit)) as u32
    }

    /// Rewrites the blocks that are not in order yet.
    fn sort(&mut self) -> Outcome {
        let blocks = self.volume.blocks();
        let mut buffer = AlignedBuf::zeroed(moves_most(BATCH_BLOCKS) * BLOCK_BYTES);
        let mut next = 0;
        while let Some(moves) = next_moves(&self.volume, &mut next, BATCH_BLOCKS) {
            if !is_in_order(&moves) {
                self.rewrite(&moves, &mut buffer)?;
            }
            self.log.inbox.set_progress(next, blocks);
            if self.log.inbox.is_stopping() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Copies these blocks in this order.
    fn rewrite(&mut self, moves: &[Move], buffer: &mut AlignedBuf) -> Outcome {
        self.writer.read_blocks(moves, buffer)?;
        self.writer.append_in_order(moves, buffer)
    }

    /// Cleans every segment that is not packed, when there is no space to sort.
    fn pack(&mut self) -> Outcome {
        let most = self.log.append_state().segments().used();
        for _ in 0..most {
            let Some(victim) = self.cleaner.choose_victim() else { break };
            let Err(errno) = self.cleaner.clean(&mut self.writer, victim) else {
                continue;
            };
            let before = self.log.append_state().segments().ready_or_obtainable();
            self.writer.checkpoint(CheckpointKind::Running)?;
            if errno != Errno::NOSPC {
                return Err(errno);
            }
            if self.log.append_state().segments().ready_or_obtainable() <= before {
                // No space to continue with, and nothing lost: the rest stays as it was.
                break;
            }
        }
        Ok(())
    }
}

/// Returns whether the blocks are consecutive in the file already.
fn is_in_order(moves: &[Move]) -> bool {
    moves.windows(2).all(|pair| pair[0].old.address().is_followed_by(pair[1].old.address()))
}
