//! Reads victims in pieces, some pieces ahead of use: the device works while the present ones are
//! examined, and while copies are in flight.

use std::collections::VecDeque;

use flowstone_block::{AlignedBuf, Slab};
use flowstone_log_format::{BLOCK_BYTES, Incarnation, SegmentId, Shape};

use super::transfers::{Ticket, Transfers};

/// Blocks of a piece. Guest writes wait for a few of them at the device.
const PIECE_BLOCKS: u32 = 16;
/// Maximum number of pieces in flight.
const COMING_MOST: usize = 4;
/// Maximum number of pieces in memory, including those in flight.
const PIECES_MOST: usize = 16;
const PIECE_BYTES: usize = PIECE_BLOCKS as usize * BLOCK_BYTES;

/// See the module.
#[derive(Default)]
pub struct ReadAhead {
    /// In segment order. The first one is being examined.
    pieces: VecDeque<Piece>,
    /// The segment they belong to.
    victim: Option<(SegmentId, Incarnation)>,
    /// First block of the next piece.
    next: u32,
    spare: Vec<AlignedBuf>,
}

struct Piece {
    first: u32,
    blocks: u32,
    content: Content,
}

enum Content {
    Coming(Ticket),
    Here(AlignedBuf),
    /// Part of it could not be read: each block is read on use, to the start of the buffer.
    Partly(AlignedBuf),
}

impl ReadAhead {
    /// Size of its memory.
    pub const BYTES: usize = PIECES_MOST * PIECE_BYTES;

    /// Takes its memory from a slab, as far as there is some; `None` if the host has none even for
    /// one piece.
    pub fn new(slab: Option<&mut Slab>) -> Option<Self> {
        let cut = |slab: &mut Slab| (0..PIECES_MOST).map_while(|_| slab.cut(PIECE_BYTES)).collect();
        let mut spare: Vec<AlignedBuf> = slab.map(cut).unwrap_or_default();
        if spare.is_empty() {
            spare.push(AlignedBuf::try_zeroed(PIECE_BYTES)?);
        }
        Some(Self { spare, ..Self::default() })
    }

    /// Starts to read a victim from its start, unless already done.
    pub fn begin(
        &mut self,
        transfers: &mut Transfers,
        shape: Shape,
        victim: (SegmentId, Incarnation),
    ) {
        let is_begun = self.pieces.front().is_some_and(|piece| piece.first == 0);
        if !is_begun || self.victim != Some(victim) {
            self.forget(transfers);
            self.victim = Some(victim);
            self.next = 0;
        }
        self.go_on(transfers, shape);
    }

    /// Stops reading, and keeps the memory.
    pub fn forget(&mut self, transfers: &mut Transfers) {
        while self.drop_first(transfers) {}
        self.victim = None;
    }

    /// Makes a block of the victim [available](Self::block). Blocks must be requested in order.
    /// `false` if it cannot be read.
    pub fn show(&mut self, transfers: &mut Transfers, shape: Shape, block: u32) -> bool {
        let Some((segment, _)) = self.victim else { return false };
        while self.pieces.front().is_some_and(|it| block >= it.first + it.blocks) {
            self.drop_first(transfers);
            self.go_on(transfers, shape);
        }
        let Some(piece) = self.pieces.front_mut().filter(|it| block >= it.first) else {
            return false;
        };
        piece.content = match std::mem::replace(&mut piece.content, Content::Partly(empty())) {
            Content::Coming(ticket) => match transfers.wait(ticket) {
                (buffer, Ok(())) => Content::Here(buffer),
                (buffer, Err(_)) => Content::Partly(buffer),
            },
            content => content,
        };
        let Content::Partly(buffer) = &mut piece.content else { return true };
        let from = shape.address(segment, block);
        let ticket = transfers.read(from, std::mem::replace(buffer, empty()), BLOCK_BYTES);
        let (read, outcome) = transfers.wait(ticket);
        *buffer = read;
        outcome.is_ok()
    }

    /// Returns a block that has just been shown.
    pub fn block(&self, block: u32) -> &[u8] {
        let piece = self.pieces.front().expect("a block is shown before it is looked at");
        let start = (block - piece.first) as usize * BLOCK_BYTES;
        match &piece.content {
            Content::Here(buffer) => &buffer[start..start + BLOCK_BYTES],
            Content::Partly(buffer) => &buffer[..BLOCK_BYTES],
            Content::Coming(_) => unreachable!("a block is shown before it is looked at"),
        }
    }

    /// Starts further reads, up to the limits.
    pub fn go_on(&mut self, transfers: &mut Transfers, shape: Shape) {
        let Some((segment, _)) = self.victim else { return };
        let is_coming = |piece: &&Piece| match &piece.content {
            Content::Coming(ticket) => !transfers.has_ended(ticket),
            Content::Here(_) | Content::Partly(_) => false,
        };
        let mut coming = self.pieces.iter().filter(is_coming).count();
        while coming < COMING_MOST
            && self.pieces.len() < PIECES_MOST
            && self.next < shape.segment_blocks
        {
            // One is always there: while no piece is in memory, it is spare.
            let new = || AlignedBuf::try_zeroed(PIECE_BYTES);
            let Some(buffer) = self.spare.pop().or_else(new) else { return };
            coming += 1;
            let (first, blocks) = (self.next, PIECE_BLOCKS.min(shape.segment_blocks - self.next));
            let from = shape.address(segment, first);
            let ticket = transfers.read(from, buffer, blocks as usize * BLOCK_BYTES);
            self.pieces.push_back(Piece { first, blocks, content: Content::Coming(ticket) });
            self.next += blocks;
        }
    }

    fn drop_first(&mut self, transfers: &mut Transfers) -> bool {
        let Some(piece) = self.pieces.pop_front() else { return false };
        self.spare.push(match piece.content {
            Content::Coming(ticket) => transfers.wait(ticket).0,
            Content::Here(buffer) | Content::Partly(buffer) => buffer,
        });
        true
    }
}

fn empty() -> AlignedBuf {
    AlignedBuf::zeroed(0)
}

#[cfg(test)]
mod tests {
    use flowstone_block::Errno;
    use flowstone_fileio::{BlockingFile, FileOffset};
    use flowstone_log_store::SegmentStore;
    use flowstone_sim::{Call, Fault, Schedule, SimDisk};

    use super::*;

    const SHAPE: Shape = Shape { segment_blocks: 64, reserve_percent: 20, streams: 1 };
    const SEGMENT_BYTES: usize = 64 * BLOCK_BYTES;

    /// A disk each of whose blocks begins with its number.
    fn disk() -> SimDisk {
        let disk = SimDisk::new(4 * SEGMENT_BYTES as u64);
        let mut content = AlignedBuf::zeroed(4 * SEGMENT_BYTES);
        for (number, block) in (0..=u8::MAX).zip(content.chunks_exact_mut(BLOCK_BYTES)) {
            block[0] = number;
        }
        BlockingFile::new(&disk).unwrap().write(FileOffset::new(0), &mut content).unwrap();
        disk.set_schedule(Schedule::Shuffled { seed: 7 });
        disk
    }

    fn store(disk: &SimDisk) -> SegmentStore {
        SegmentStore::new(Box::new(disk.clone()), SHAPE)
    }

    fn victim(segment: u32) -> (SegmentId, Incarnation) {
        (SegmentId::new(segment), Incarnation::new(1, segment))
    }

    #[test]
    fn blocks_of_one_victim_after_the_other_are_shown_in_their_order() {
        let mut transfers = Transfers::new(&store(&disk())).unwrap();
        let mut ahead = ReadAhead::default();
        for segment in [2, 1, 3, 3] {
            ahead.begin(&mut transfers, SHAPE, victim(segment));
            for block in (0..64).step_by(segment as usize * 7) {
                assert!(ahead.show(&mut transfers, SHAPE, block));
                assert_eq!(u32::from(ahead.block(block)[0]), segment * 64 + block);
            }
        }
    }

    #[test]
    fn a_block_that_cannot_be_read_takes_no_other_with_it() {
        let disk = disk();
        let mut transfers = Transfers::new(&store(&disk)).unwrap();
        let mut ahead = ReadAhead::default();
        let bad = (SEGMENT_BYTES + 5 * BLOCK_BYTES) as u64;
        let range = bad..bad + BLOCK_BYTES as u64;
        disk.inject(Fault::fail(Errno::IO).on(Call::Read).within(range).always());
        ahead.begin(&mut transfers, SHAPE, victim(1));
        for block in 0..64 {
            assert_eq!(ahead.show(&mut transfers, SHAPE, block), block != 5, "{block}");
            assert!(block == 5 || u32::from(ahead.block(block)[0]) == 64 + block);
        }
    }
}
