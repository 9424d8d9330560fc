//! Roll-forward: applies the records written after the newest checkpoint, in order.
//!
//! Streams of guest data are merged by sequence number. The first incomplete record ends the
//! replay; records behind it had not completed when the daemon died, or had not been flushed when
//! power was lost.
//!
//! Copies made by the cleaner are applied at the point between the guest's records where they were
//! made: so a block moves only if its address is still the one it was copied from. A missing copy
//! leaves its block at the old address, which stays valid as long as the copy was not durable.

use std::ops::RangeInclusive;

use flowstone_block::mutated;
use flowstone_image::{Flaw, Progress};
use flowstone_log_format::{
    Address, Codec, Entry, HeadPlace, Header, Kind, LIFETIME_CLEANED, LIFETIME_COLD,
    LIFETIME_GUEST_MAX, MapEntry, STREAMS_MAX, SegmentId, Sequence, Shape, Superblock,
    blocks_of_sectors,
};
use flowstone_log_store::segments::{Segment, SegmentTable, State};
use flowstone_log_store::{Reader, Window};

use super::log::append::commit::apply_entries;
use super::refusal::LoadError;
use super::volume::map::BlockMap;

/// Result of a replay.
#[derive(Clone, Debug, Default)]
pub struct Replay {
    pub next_sequence: Sequence,
    /// Records applied, and their blocks.
    pub records: u64,
    pub blocks: u64,
    /// Guest blocks among the applied blocks.
    pub guest_blocks: u64,
    /// End of each stream.
    pub heads: [HeadPlace; STREAMS_MAX],
    /// Evidence that the medium has lost data that was durable.
    pub damage: Option<Flaw>,
    /// The lost part is a newer superblock: nothing here may be trusted.
    pub is_stale: bool,
}

impl Replay {
    /// Replay of an image that was closed cleanly.
    pub fn nothing(superblock: &Superblock) -> Self {
        Self {
            next_sequence: superblock.next_sequence,
            heads: first_heads(superblock),
            ..Self::default()
        }
    }
}

fn first_heads(superblock: &Superblock) -> [HeadPlace; STREAMS_MAX] {
    std::array::from_fn(|stream| superblock.heads[stream])
}

/// Read position in one stream.
struct Cursor {
    lifetime: u8,
    head: HeadPlace,
    window: Window,
    header: Option<Header>,
    entries: Vec<Entry>,
    /// For copies, the sequence number of the previous record. It must increase, or seals could
    /// form a cycle.
    last: Sequence,
}

/// An image whose records are read, and the progress to report to.
pub struct Medium<'a, 'file> {
    pub reader: &'a mut Reader<'file>,
    pub shape: Shape,
    pub codec: Codec,
    pub progress: Option<&'a Progress>,
}

impl Medium<'_, '_> {
    /// Reports segments with guests' records that have been read.
    pub fn tell(&self, segments: usize) {
        if let Some(progress) = self.progress {
            progress.add(segments as u64);
        }
    }
}

/// Applies all records after the checkpoint to `map`, and marks the segments they are in.
pub fn replay(
    medium: &mut Medium<'_, '_>,
    superblock: &Superblock,
    map: &BlockMap,
    segments: &mut SegmentTable,
) -> Result<Replay, LoadError> {
    let mut found = Replay::nothing(superblock);
    let mut guests = medium.start(superblock, 0..=LIFETIME_GUEST_MAX, segments)?;
    let mut copies = medium.start(superblock, LIFETIME_CLEANED..=LIFETIME_COLD, segments)?;
    while let Some(cursor) = whose_turn(&mut guests, &mut copies, found.next_sequence) {
        let is_newer =
            cursor.header.is_some_and(|header| header.generation > superblock.generation);
        let is_newer = mutated("log.replay.newer-generation-unchecked", is_newer, false);
        if is_newer && cursor.lifetime <= LIFETIME_GUEST_MAX {
            found.damage = Some(Flaw::new("a newer superblock than the ones found has existed"));
            found.is_stale = true;
            break;
        }
        if !medium.apply(cursor, superblock, map, &mut found)? {
            cursor.header = None;
            continue;
        }
        if cursor.head.block == 0 {
            note_segment(segments, cursor);
            medium.tell(usize::from(cursor.lifetime <= LIFETIME_GUEST_MAX));
        }
        medium.look(cursor)?;
    }
    for cursor in &mut guests {
        let looks = mutated("log.open.lost-tail-unchecked", found.damage.is_none(), false);
        if looks {
            found.damage = medium.find_promises(cursor, found.next_sequence)?;
        }
    }
    medium.tell(guests.len());
    for cursor in &guests {
        found.heads[usize::from(cursor.lifetime)] = cursor.head;
    }
    Ok(found)
}

/// Returns the stream whose record is applied next; `None` if no stream has it.
fn whose_turn<'cursors>(
    guests: &'cursors mut [Cursor],
    copies: &'cursors mut [Cursor],
    next: Sequence,
) -> Option<&'cursors mut Cursor> {
    let is_next = |cursor: &&mut Cursor| {
        let is_next = cursor.sequence().is_some_and(|it| it == next);
        let is_later = cursor.sequence().is_some_and(|it| it >= next);
        mutated("log.replay.accepts-gap", is_next, is_later)
    };
    let guest = guests.iter_mut().find(is_next);
    let copy = copies.iter_mut().filter(|it| it.header.is_some()).min_by_key(|it| it.sequence());
    match (guest, copy) {
        (Some(guest), Some(copy)) => {
            // EQUIVALENT: log.replay.copies-after-guests. A copy moves a block only if its map
            // entry is still the one it was copied from; a guest's record restores that entry only
            // with the same content at the same address, and the copy has that content too: replay
            // has checked it, and its segment is pinned until the next checkpoint.
            let goes_first = copy.was_made_by(next);
            let goes_first = mutated("log.replay.copies-after-guests", goes_first, false);
            Some(if goes_first { copy } else { guest })
        }
        (one, other) => one.or(other),
    }
}

fn note_segment(segments: &mut SegmentTable, cursor: &Cursor) {
    let segment = Segment {
        state: State::Sealed,
        lifetime: cursor.lifetime,
        incarnation: cursor.head.incarnation,
        pinned: true,
        ..segments.get(cursor.head.segment)
    };
    segments.set(cursor.head.segment, segment);
}

impl Cursor {
    fn new(lifetime: u8, head: HeadPlace) -> Self {
        Self {
            lifetime,
            head,
            window: Window::default(),
            header: None,
            entries: Vec::new(),
            last: Sequence::default(),
        }
    }

    fn sequence(&self) -> Option<Sequence> {
        self.header.map(|header| header.sequence)
    }

    /// For copies: returns whether no guest record from `next` on had committed when they were
    /// made.
    fn was_made_by(&self, next: Sequence) -> bool {
        self.header.is_some_and(|header| header.durable <= next)
    }
}

impl Medium<'_, '_> {
    /// Returns cursors at the heads of the streams of these lifetimes.
    fn start(
        &mut self,
        superblock: &Superblock,
        lifetimes: RangeInclusive<u8>,
        segments: &mut SegmentTable,
    ) -> Result<Vec<Cursor>, LoadError> {
        let mut cursors = Vec::new();
        for lifetime in lifetimes {
            let head = superblock.heads[usize::from(lifetime)];
            if !head.incarnation.is_none() {
                let mut cursor = Cursor::new(lifetime, head);
                note_segment(segments, &cursor);
                self.look(&mut cursor)?;
                cursors.push(cursor);
            }
        }
        Ok(cursors)
    }

    fn show(&mut self, cursor: &mut Cursor, first: u32, count: u32) -> Result<bool, LoadError> {
        let segment = cursor.head.segment;
        Ok(cursor.window.show(self.reader, self.shape, segment, first, count)?)
    }

    /// Reads the header at the cursor, if a record of its stream is there.
    fn look(&mut self, cursor: &mut Cursor) -> Result<(), LoadError> {
        cursor.header = None;
        let at = cursor.head.block;
        if !self.show(cursor, at, 1)? {
            return Ok(());
        }
        let header = self.codec.decode(cursor.window.block(at), &mut cursor.entries);
        let data =
            if cursor.lifetime <= LIFETIME_GUEST_MAX { Kind::Writes } else { Kind::Relocated };
        let is_later = |header: &Header| {
            cursor.lifetime <= LIFETIME_GUEST_MAX || header.sequence > cursor.last
        };
        cursor.header = header.filter(|header| {
            let is_current = header.incarnation == cursor.head.incarnation;
            let is_current = mutated("log.replay.ignores-incarnation", is_current, true);
            is_later(header)
                && is_current
                && header.position == at
                && (header.kind == data || header.kind == Kind::Seal)
        });
        Ok(())
    }

    /// Applies the record at the cursor and advances it; `false` if the record is incomplete.
    fn apply(
        &mut self,
        cursor: &mut Cursor,
        superblock: &Superblock,
        map: &BlockMap,
        found: &mut Replay,
    ) -> Result<bool, LoadError> {
        let Some(header) = cursor.header else { return Ok(false) };
        let first = cursor.head.block;
        let blocks = blocks_of_sectors(superblock.capacity_sectors);
        if !self.show(cursor, first, header.record_blocks())? || !is_whole(cursor, blocks) {
            return Ok(false);
        }
        cursor.last = header.sequence;
        if cursor.lifetime <= LIFETIME_GUEST_MAX {
            found.next_sequence = header.sequence.next();
        }
        found.records += 1;
        found.blocks += u64::from(header.record_blocks());
        match (header.kind, cursor.entries.first()) {
            (Kind::Seal, Some(Entry::Next { incarnation })) => {
                let segment = SegmentId::new(u32::try_from(header.link).unwrap_or(0));
                if segment == SegmentId::SUPERBLOCKS || segment.get() >= superblock.segments {
                    found.damage = Some(Flaw::new("a seal leads outside the image"));
                    return Ok(false);
                }
                cursor.head = HeadPlace { incarnation: *incarnation, segment, block: 0 };
            }
            (Kind::Relocated, _) => {
                if header.link != 0 {
                    move_blocks(cursor, self.shape.address(cursor.head.segment, first), map);
                }
                cursor.head.block += header.record_blocks();
            }
            _ => {
                let address: Address = self.shape.address(cursor.head.segment, first);
                found.guest_blocks += u64::from(header.payload_blocks);
                let trims = mutated("log.replay.forgets-trims", true, false);
                if !trims {
                    cursor.entries.retain(|entry| !matches!(entry, Entry::Trim { .. }));
                }
                apply_entries(&cursor.entries, address, map, |_| {});
                cursor.head.block += header.record_blocks();
            }
        }
        Ok(true)
    }

    /// Looks behind the end for a record that states the end to be durable: then the log is
    /// damaged.
    fn find_promises(
        &mut self,
        cursor: &mut Cursor,
        next: Sequence,
    ) -> Result<Option<Flaw>, LoadError> {
        let mut entries = Vec::new();
        let start = cursor.head.block;
        for block in start..self.shape.segment_blocks {
            if !self.show(cursor, block, 1)? {
                break;
            }
            let Some(header) = self.codec.decode(cursor.window.block(block), &mut entries) else {
                continue;
            };
            let later = header.incarnation == cursor.head.incarnation && header.position == block;
            if later && header.sequence >= next && header.durable > next {
                let place = self.shape.address(cursor.head.segment, cursor.head.block);
                let what = format!(
                    "record {next} is damaged, and everything before record {} was durable: \
                     flushed writes would be lost",
                    header.durable
                );
                return Ok(Some(Flaw::new(what).at(place.offset())));
            }
        }
        Ok(None)
    }
}

/// Returns whether all data of the record matches its checksums and lies on a disk of this size.
fn is_whole(cursor: &Cursor, blocks: u64) -> bool {
    let mut block = cursor.head.block;
    cursor.entries.iter().all(|entry| match *entry {
        Entry::Data { lba, checksum } | Entry::Moved { lba, checksum, .. } => {
            block += 1;
            let fits = crc32c::crc32c(cursor.window.block(block)) == checksum;
            let fits = mutated("log.replay.data-unchecked", fits, true);
            lba < blocks && fits
        }
        Entry::Trim { lba, count } => {
            lba.checked_add(u64::from(count)).is_some_and(|end| end <= blocks)
        }
        Entry::Next { .. } => true,
        Entry::Leaf { .. } | Entry::Root { .. } => false,
    })
}

/// Applies the copies of the record at `address` to the map, for blocks that are still at the
/// address they were copied from.
fn move_blocks(cursor: &Cursor, address: Address, map: &BlockMap) {
    let mut payload = 0;
    for entry in &cursor.entries {
        if let Entry::Moved { lba, from, checksum } = *entry {
            let new = MapEntry::new(address.forward(1 + payload), checksum);
            map.replace_if(lba, MapEntry::new(from, checksum), new);
        }
        payload += entry.payload_blocks();
    }
}

#[cfg(test)]
mod tests;
