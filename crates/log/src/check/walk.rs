//! Walks through the records of every segment in use: header by header, many segments side by side.
//! Where a header is missing, it goes on block by block as long as claims are unconfirmed.

use std::ops::Range;

use flowstone_block::AlignedBuf;
use flowstone_image::CheckProgress;
use flowstone_log_format::{
    Address, BLOCK_BYTES, Entry, Header, Incarnation, LeafPlace, SegmentId,
};
use flowstone_log_store::Reader;

use super::Findings;
use super::claims::Claims;
use crate::load::Loaded;

/// Number of segments walked side by side.
const CURSORS: usize = 32;

/// Position of the walk in one segment.
struct SegmentCursor {
    segment: SegmentId,
    /// Incarnation of the segment's present use; none if unknown.
    incarnation: Incarnation,
    block: u32,
    /// Claims and pieces of the map in it that no record has confirmed.
    missing: usize,
    /// Whether the expected header is missing: the next record is searched block by block.
    lost: bool,
    header: AlignedBuf,
}

/// Live data of one record, to be read and compared.
struct Payload {
    first: u32,
    buffer: AlignedBuf,
    /// Indices of its claims.
    claims: Vec<usize>,
}

/// The walk.
pub(super) struct Walk<'a, 'name> {
    pub reader: Reader<'a>,
    pub loaded: &'a Loaded,
    pub claims: &'a mut Claims,
    pub data: bool,
    pub findings: &'a mut Findings<'name>,
    /// Of the record that was decoded last.
    pub entries: Vec<Entry>,
}

impl Walk<'_, '_> {
    /// Walks through all segments that contain claims.
    pub fn run(&mut self, progress: CheckProgress<'_>) {
        let waiting: Vec<SegmentCursor> = self.cursors();
        let total = waiting.len() as u64;
        let mut waiting = waiting.into_iter();
        let mut cursors: Vec<SegmentCursor> = waiting.by_ref().take(CURSORS).collect();
        let segment_bytes = self.loaded.shape.segment_bytes();
        while !cursors.is_empty() {
            self.read_headers(&mut cursors);
            let mut payloads = Vec::new();
            for cursor in &mut cursors {
                payloads.extend(self.step(cursor));
            }
            self.compare(&mut payloads);
            let finished = |cursor: &mut SegmentCursor| {
                cursor.missing == 0 || cursor.block >= self.loaded.shape.segment_blocks
            };
            let done = cursors.extract_if(.., finished).count();
            cursors.extend(waiting.by_ref().take(done));
            let left = (cursors.len() + waiting.len()) as u64;
            progress((total - left) * segment_bytes, total * segment_bytes);
        }
    }

    fn cursors(&self) -> Vec<SegmentCursor> {
        let shape = self.loaded.shape;
        let cursor = |(segment, known): (SegmentId, flowstone_log_store::segments::Segment)| {
            let addresses = self.addresses(segment);
            let claims = &self.claims.blocks[self.claims.blocks_in(addresses.clone())];
            let missing = claims.chunk_by(|a, b| a.address == b.address).count()
                + self.claims.pieces_in(addresses).len();
            let incarnation = known.incarnation;
            let header = AlignedBuf::zeroed(if missing > 0 { BLOCK_BYTES } else { 0 });
            SegmentCursor { segment, incarnation, block: 0, missing, lost: false, header }
        };
        let used = self.loaded.segments.iter().filter(|(segment, _)| {
            u64::from(shape.address(*segment, 0).get()) < self.reader.blocks()
        });
        used.map(cursor).filter(|cursor| cursor.missing > 0).collect()
    }

    fn addresses(&self, segment: SegmentId) -> Range<u32> {
        let start = self.loaded.shape.address(segment, 0).get();
        // The last segment may end at the highest address.
        start..start.saturating_add(self.loaded.shape.segment_blocks)
    }

    fn address(&self, cursor: &SegmentCursor) -> Address {
        self.loaded.shape.address(cursor.segment, cursor.block)
    }

    /// Reads the block at each cursor. An unreadable block counts as no record.
    fn read_headers(&mut self, cursors: &mut [SegmentCursor]) {
        let shape = self.loaded.shape;
        let reads = cursors
            .iter_mut()
            .map(|at| (shape.address(at.segment, at.block), &mut *at.header))
            .collect();
        let outcomes = self.reader.read_each(reads);
        for (cursor, _) in cursors.iter_mut().zip(outcomes).filter(|(_, read)| read.is_err()) {
            cursor.header.fill(0);
        }
    }

    /// Examines the record at a cursor, and advances the cursor.
    fn step(&mut self, cursor: &mut SegmentCursor) -> Option<Payload> {
        let mut entries = std::mem::take(&mut self.entries);
        let header = self.loaded.codec.decode(&cursor.header, &mut entries);
        let header = header.filter(|header| self.belongs(cursor, header));
        let payload = match header {
            Some(header) => {
                let payload = self.agree(cursor, &entries);
                cursor.lost = false;
                cursor.block += header.record_blocks();
                payload
            }
            None => {
                self.search(cursor);
                None
            }
        };
        self.entries = entries;
        payload
    }

    fn belongs(&self, cursor: &SegmentCursor, header: &Header) -> bool {
        let end = u64::from(cursor.block) + u64::from(header.record_blocks());
        header.position == cursor.block
            && (header.incarnation == cursor.incarnation || cursor.incarnation.is_none())
            && end <= u64::from(self.loaded.shape.segment_blocks)
    }

    /// Advances the cursor to the next allocated block, when there is no record here and claims are
    /// unconfirmed.
    fn search(&mut self, cursor: &mut SegmentCursor) {
        if !cursor.lost {
            let offset = self.address(cursor).offset().get();
            self.findings.error(format!(
                "there is no record at file offset {offset}, and {} blocks of segment {} have not \
                 been found before it",
                cursor.missing, cursor.segment
            ));
            cursor.lost = true;
        }
        cursor.block += 1;
        let addresses = self.addresses(cursor.segment);
        let next = u64::from(addresses.start) + u64::from(cursor.block);
        let start = u64::from(addresses.start);
        let segment_blocks = self.loaded.shape.segment_blocks;
        let found = self.reader.next_allocated(next, start + u64::from(segment_blocks));
        let found = found.ok().flatten();
        cursor.block = found.map_or(segment_blocks, |range| (range.start - start) as u32);
    }

    /// Compares the entries of a record with the map.
    fn agree(&mut self, cursor: &mut SegmentCursor, entries: &[Entry]) -> Option<Payload> {
        let mut at = self.address(cursor).get();
        let mut live = Vec::new();
        for entry in entries {
            at = at.saturating_add(1);
            match *entry {
                Entry::Data { lba, checksum } | Entry::Moved { lba, checksum, .. } => {
                    live.extend(self.agree_block(cursor, at, lba, checksum));
                }
                Entry::Leaf { leaf, checksum } => {
                    let place = LeafPlace { leaf, address: Address::new(at), checksum };
                    let same = self.loaded.leaves.get(&leaf) == Some(&place);
                    self.agree_piece(cursor, at, Some(leaf), same);
                }
                Entry::Root { checksum, .. } => {
                    let same = self.loaded.superblock.root.checksum == checksum;
                    self.agree_piece(cursor, at, None, same);
                }
                Entry::Trim { .. } | Entry::Next { .. } => {}
            }
            at = at - 1 + entry.payload_blocks();
        }
        self.payload(live)
    }

    /// Compares a block's entry with its claims; returns the index of the claim, if the block is
    /// live.
    fn agree_block(
        &mut self,
        cursor: &mut SegmentCursor,
        at: u32,
        lba: u64,
        sum: u32,
    ) -> Option<usize> {
        let claims = self.claims.blocks_in(at..at + 1);
        let first = claims.start;
        if claims.is_empty() {
            return None;
        }
        if !self.claims.found[first] {
            cursor.missing -= 1;
        }
        let agreed = claims.clone().find(|claim| u64::from(self.claims.blocks[*claim].lba) == lba);
        for claim in claims {
            self.claims.found[claim] = true;
            let claimed = u64::from(self.claims.blocks[claim].lba);
            let map_entry = self.loaded.map.get(claimed);
            if Some(claim) != agreed {
                self.findings.block_error(claimed, map_entry, format!("LBA {lba} is there"));
            } else if map_entry.checksum() != sum {
                let what = "the checksums in map and record differ";
                self.findings.block_error(claimed, map_entry, what);
            }
        }
        agreed
    }

    fn agree_piece(&mut self, cursor: &mut SegmentCursor, at: u32, leaf: Option<u32>, same: bool) {
        for index in self.claims.pieces_in(at..at + 1) {
            let piece = &mut self.claims.pieces[index];
            if !piece.found {
                piece.found = true;
                cursor.missing -= 1;
            }
            if !same || piece.leaf != leaf {
                let offset = Address::new(at).offset().get();
                self.findings.error(format!(
                    "map and record disagree about a piece of the map at file offset {offset}"
                ));
            }
        }
    }

    /// Returns the part to read of a record with these live blocks, if data is checked.
    fn payload(&self, claims: Vec<usize>) -> Option<Payload> {
        let first = self.claims.blocks[*claims.first()?].address;
        let last = self.claims.blocks[*claims.last()?].address;
        let blocks = (last - first + 1) as usize;
        let buffer = self.data.then(|| AlignedBuf::zeroed(blocks * BLOCK_BYTES))?;
        Some(Payload { first, buffer, claims })
    }

    /// Reads data and compares it with its checksums.
    fn compare(&mut self, payloads: &mut [Payload]) {
        let reads =
            payloads.iter_mut().map(|it| (Address::new(it.first), &mut *it.buffer)).collect();
        let outcomes = self.reader.read_each(reads);
        for (payload, read_at_once) in payloads.iter_mut().zip(outcomes) {
            for &claim in &payload.claims {
                let at = (self.claims.blocks[claim].address - payload.first) as usize * BLOCK_BYTES;
                let block = &mut payload.buffer[at..at + BLOCK_BYTES];
                let lba = u64::from(self.claims.blocks[claim].lba);
                let map_entry = self.loaded.map.get(lba);
                let read = read_at_once.or_else(|_| self.reader.read(map_entry.address(), block));
                let why = match read {
                    Ok(()) if crc32c::crc32c(block) == map_entry.checksum() => {
                        self.findings.report.readable_bytes += BLOCK_BYTES as u64;
                        continue;
                    }
                    Ok(()) => "its checksum does not fit".into(),
                    Err(errno) => format!("it cannot be read: {errno}"),
                };
                self.findings.block_error(lba, map_entry, why);
            }
        }
    }

    /// Reports all claims that no record has confirmed.
    pub fn report_unfound(&mut self) {
        let mut buffer = AlignedBuf::zeroed(BLOCK_BYTES);
        for claim in 0..self.claims.blocks.len() {
            if self.claims.found[claim] {
                continue;
            }
            let lba = u64::from(self.claims.blocks[claim].lba);
            let map_entry = self.loaded.map.get(lba);
            let mut state = "";
            if self.data {
                let read = self.reader.read(map_entry.address(), &mut buffer);
                let whole = read.is_ok() && crc32c::crc32c(&buffer) == map_entry.checksum();
                state = if whole { "; its data is whole" } else { "; its data is damaged" };
                self.findings.report.readable_bytes += if whole { BLOCK_BYTES as u64 } else { 0 };
            }
            self.findings.block_error(lba, map_entry, format!("no record says so{state}"));
        }
        for piece in self.claims.pieces.iter().filter(|piece| !piece.found) {
            let offset = Address::new(piece.address).offset().get();
            let what = piece.leaf.map_or("the map root".into(), |leaf| format!("map leaf {leaf}"));
            self.findings
                .error(format!("{what} at file offset {offset}: no record says so; it is whole"));
        }
    }
}
