//! Copies of live blocks from any segments, in LBA order.

use std::collections::BTreeSet;

use flowstone_block::{AlignedBuf, Errno, Outcome, mutated};
use flowstone_log_format::{BLOCK_BYTES, Entry, Kind, LIFETIME_SORTED, RecordBuilder, SegmentId};
use flowstone_log_store::segments::LOOK_MOST;

use super::{CheckpointKind, Move, Writer};
use crate::volume::Volume;

/// Aligned group of blocks that is copied into one record: a request of 128 KiB reads them from one
/// place. A record header lies between groups of different records.
const TOGETHER_BLOCKS: u64 = 32;

/// Returns the next `count` live blocks of the disk, in LBA order, plus the rest of the last
/// group.
pub fn next_moves(volume: &Volume, next: &mut u64, count: usize) -> Option<Vec<Move>> {
    let end = volume.blocks();
    let mut moves: Vec<Move> = Vec::with_capacity(moves_most(count));
    while let Some(lba) = volume.map.next_mapped(*next..end) {
        let goes_along = |last: &Move| last.lba / TOGETHER_BLOCKS == lba / TOGETHER_BLOCKS;
        if moves.len() >= count && !moves.last().is_some_and(goes_along) {
            break;
        }
        moves.push(Move { lba, old: volume.map.get(lba) });
        *next = lba + 1;
    }
    (!moves.is_empty()).then_some(moves)
}

/// Returns the maximum number of blocks that [`next_moves`] returns for `count`.
pub const fn moves_most(count: usize) -> usize {
    count + TOGETHER_BLOCKS as usize - 1
}

impl Writer {
    /// Reads these blocks into consecutive memory.
    pub fn read_blocks(&mut self, moves: &[Move], buffer: &mut AlignedBuf) -> Outcome {
        let addresses = moves.iter().map(|moved| moved.old.address());
        self.space.store.read_many(addresses.zip(buffer.chunks_exact_mut(BLOCK_BYTES)))
    }

    /// Appends copies of the blocks that were read. As far as possible, no record ends inside a
    /// part of the disk that guests read with one request.
    pub fn append_in_order(&mut self, moves: &[Move], buffer: &AlignedBuf) -> Outcome {
        let mut builder = RecordBuilder::new(self.log.shape.record_payload_max());
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
                let fits = crc32c::crc32c(block) == checksum;
                let fits = mutated("log.sorted.data-unchecked", fits, true);
                if !fits {
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
        TOGETHER_BLOCKS.min(self.log.shape.record_payload_max().into())
    }

    /// Returns the maximum number of copies in the next record, of which `count` stay together: the
    /// rest of the open segment, or a full record in another one.
    fn sorted_that_fit(&self, count: u32) -> u32 {
        let fit = self.streams.copies_that_fit(LIFETIME_SORTED);
        if fit < count { self.log.shape.record_payload_max() } else { fit }
    }

    /// Copies from many segments at once are not replayed: their sources are pinned until a
    /// checkpoint.
    fn append_sorted(&mut self, builder: &mut RecordBuilder, moves: &mut Vec<Move>) -> Outcome {
        if moves.is_empty() {
            return Ok(());
        }
        let sources: BTreeSet<SegmentId> =
            moves.iter().map(|it| self.log.shape.segment_of(it.old.address())).collect();
        let sources = Vec::from_iter(sources);
        let header = match self.append(LIFETIME_SORTED, Kind::Relocated, 0, builder) {
            Err(Errno::NOSPC) => {
                self.checkpoint(CheckpointKind::Running)?;
                self.append(LIFETIME_SORTED, Kind::Relocated, 0, builder)?
            }
            other => other?,
        };
        let pins = mutated("log.compact.does-not-pin-sources", true, false);
        for few in sources.chunks(LOOK_MOST).filter(|_| pins) {
            let mut state = self.log.append_state();
            few.iter().for_each(|segment| state.segments_mut().pin(*segment));
        }
        let birth = self.log.append_state().accounting().clock();
        self.streams.apply_moves(LIFETIME_SORTED, header, moves, birth);
        moves.clear();
        builder.clear();
        Ok(())
    }
}
