//! Finds records beyond the replayed end that prove the end to be durable: the medium has lost a
//! part of the log, and going on would lose the records behind it.
//!
//! Every record of guest writes states the sequence number up to which all was durable when it was
//! placed. No intact log ends before that.
//!
//! An unreadable block is an error where the log would go on. Elsewhere it proves nothing, and the
//! other blocks of its segment are read (docs/format.md section 8).

use flowstone_block::{AlignedBuf, Errno, Outcome, mutated};
use flowstone_image::Flaw;
use flowstone_log_format::{
    BLOCK_BYTES, Header, Kind, LIFETIME_GUEST_MAX, STREAMS_MAX, SegmentId, Sequence, Shape,
    Superblock,
};
use flowstone_log_store::Window;
use flowstone_log_store::segments::SegmentTable;

use super::replay::{Medium, Replay};

/// Number of segments read together.
const BATCH: usize = 64;

/// Returns the number of segments in the file, including segment 0, up to the limit of the image.
pub fn segments_of(shape: Shape, file_blocks: u64, segments: &SegmentTable) -> u32 {
    segments.limit().min((file_blocks / u64::from(shape.segment_blocks)) as u32)
}

impl Medium<'_, '_> {
    /// Reads the places where the log would have gone on; returns the damage found.
    pub fn find_lost_tail(
        &mut self,
        superblock: &Superblock,
        replay: &Replay,
        segments: &SegmentTable,
    ) -> Result<Option<Flaw>, Errno> {
        if superblock.clean { self.behind_heads(superblock) } else { self.astray(replay, segments) }
    }

    /// Nothing is appended after a clean superblock: the next session writes a newer superblock
    /// first.
    fn behind_heads(&mut self, superblock: &Superblock) -> Result<Option<Flaw>, Errno> {
        for head in
            superblock.heads[..STREAMS_MAX].iter().filter(|head| !head.incarnation.is_none())
        {
            let found = self.header(head.segment, head.block)?;
            let appended = |it: Header| matches!(it.kind, Kind::Writes | Kind::Seal);
            if found.is_some_and(|it| it.incarnation == head.incarnation && appended(it)) {
                let what = "it was written to after the newest superblock found";
                return Ok(Some(Flaw::new(what)));
            }
        }
        Ok(None)
    }

    /// Scans the segments that no seal leads to: the seal that led to a segment may be lost.
    fn astray(&mut self, replay: &Replay, segments: &SegmentTable) -> Result<Option<Flaw>, Errno> {
        let limit = segments_of(self.shape, self.reader.blocks(), segments);
        // Guests' records were replayed from the other segments. A segment that the map root names,
        // or the superblock as a head of copies, may have died since, and have been reused.
        let was_replayed = |number: &SegmentId| {
            let segment = segments.get(*number);
            let is_guests = segment.lifetime <= LIFETIME_GUEST_MAX;
            let is_guests = mutated("log.lost-tail.trusts-heads-of-copies", is_guests, true);
            segment.pinned && is_guests
        };
        let unused: Vec<SegmentId> =
            SegmentId::range(1..limit).filter(|number| !was_replayed(number)).collect();
        let mut buffer = AlignedBuf::zeroed(BATCH * BLOCK_BYTES);
        for batch in unused.chunks(BATCH) {
            let place = |segment: &SegmentId| self.shape.address(*segment, 0);
            let reads = batch.iter().map(place).zip(buffer.chunks_exact_mut(BLOCK_BYTES)).collect();
            let outcomes = self.reader.read_each(reads);
            let is_the_end = mutated("log.lost-tail.unreadable-free-space-is-the-end", false, true);
            if is_the_end {
                outcomes.iter().copied().collect::<Outcome>()?;
            }
            self.tell(batch.len());
            let blocks = buffer.chunks_exact(BLOCK_BYTES);
            for ((segment, block), read) in batch.iter().zip(blocks).zip(outcomes) {
                let first = self.codec.decode(block, &mut Vec::new()).filter(|_| read.is_ok());
                let later = first.filter(|it| is_guests(it) && it.sequence >= replay.next_sequence);
                if read.is_ok() && later.is_none() {
                    continue;
                }
                let promise = self.promise_of(*segment);
                if promise > replay.next_sequence {
                    return Ok(Some(Flaw::new(format!(
                        "record {} is damaged, and everything before record {promise} was durable: \
                         flushed writes would be lost",
                        replay.next_sequence
                    ))));
                }
            }
        }
        Ok(None)
    }

    /// Returns the highest durable sequence number that a record of a segment states. If one of its
    /// blocks is unreadable, all others are read: no record, of any incarnation, ever stated more
    /// than was durable.
    fn promise_of(&mut self, segment: SegmentId) -> Sequence {
        self.promise_of_chain(segment).unwrap_or_else(|_| self.promise_of_blocks(segment))
    }

    /// Follows the chain of records.
    fn promise_of_chain(&mut self, segment: SegmentId) -> Result<Sequence, Errno> {
        let mut window = Window::default();
        let mut entries = Vec::new();
        let (mut block, mut promise, mut incarnation) = (0, Sequence::default(), None);
        let Self { reader, shape, codec, .. } = self;
        while window.show(reader, *shape, segment, block, 1)? {
            let Some(header) = codec.decode(window.block(block), &mut entries) else { break };
            let belongs = header.position == block
                && *incarnation.get_or_insert(header.incarnation) == header.incarnation;
            if !belongs || !is_guests(&header) {
                break;
            }
            promise = promise.max(header.durable);
            block = block.saturating_add(header.record_blocks());
        }
        Ok(promise)
    }

    /// Tries every block.
    fn promise_of_blocks(&mut self, segment: SegmentId) -> Sequence {
        let mut window = Window::default();
        let mut entries = Vec::new();
        let mut promise = Sequence::default();
        let Self { reader, shape, codec, .. } = self;
        for block in 0..shape.segment_blocks {
            match window.show(reader, *shape, segment, block, 1) {
                Ok(false) => break,
                Err(_) => continue,
                Ok(true) => {}
            }
            let header = codec.decode(window.block(block), &mut entries);
            let found = header.filter(|it| it.position == block && is_guests(it));
            promise = promise.max(found.map_or(promise, |it| it.durable));
        }
        promise
    }

    fn header(&mut self, segment: SegmentId, block: u32) -> Result<Option<Header>, Errno> {
        let mut window = Window::default();
        if !window.show(self.reader, self.shape, segment, block, 1)? {
            return Ok(None);
        }
        let header = self.codec.decode(window.block(block), &mut Vec::new());
        Ok(header.filter(|header| header.position == block))
    }
}

/// Returns whether the record is in the order of guest writes. The seals of copies are not: in them
/// `durable` means something else.
fn is_guests(header: &Header) -> bool {
    header.kind == Kind::Writes
}

#[cfg(test)]
mod tests;
