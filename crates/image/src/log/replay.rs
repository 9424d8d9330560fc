//! Roll-forward: the records that were written after the newest checkpoint, in their order.
//!
//! Streams are merged by sequence number. The first record that is not whole ends the replay; what
//! lies behind it had not completed when the daemon died, or had not been flushed when power went.

use flowstone_fileio::BlockingFile;

use super::address::Address;
use super::load::LoadError;
use super::map::BlockMap;
use super::record::{Codec, Entry, Header, Kind};
use super::segments::{Segment, SegmentTable, State};
use super::shape::{Shape, blocks_of_sectors};
use super::superblock::{HeadPlace, Superblock};
use super::tail::{STREAMS_MAX, apply_entries};
use super::window::Window;

/// What replay found.
#[derive(Clone, Debug, Default)]
pub struct Replay {
    pub next_sequence: u64,
    /// Records applied, and the blocks they take.
    pub records: u64,
    pub blocks: u64,
    /// Guest blocks among them.
    pub guest_blocks: u64,
    /// Where each stream ended.
    pub heads: [HeadPlace; STREAMS_MAX],
    /// Signs that the medium has lost something it had promised to keep.
    pub damage: Option<String>,
}

impl Replay {
    /// Of an image that was closed in order.
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

/// One stream, as far as it has been replayed.
struct Cursor {
    head: HeadPlace,
    window: Window,
    header: Option<Header>,
    entries: Vec<Entry>,
}

struct Replayer<'a> {
    reader: &'a mut BlockingFile,
    shape: Shape,
    codec: Codec,
    file_blocks: u64,
    limit: u32,
    blocks: u64,
}

/// Applies everything after the checkpoint to `map`, and notes the segments it is in.
pub fn replay(
    reader: &mut BlockingFile,
    superblock: &Superblock,
    shape: Shape,
    codec: Codec,
    file_blocks: u64,
    map: &BlockMap,
    segments: &mut SegmentTable,
) -> Result<Replay, LoadError> {
    let mut replayer = Replayer {
        reader,
        shape,
        codec,
        file_blocks,
        limit: superblock.segments,
        blocks: blocks_of_sectors(superblock.capacity_sectors),
    };
    let mut found = Replay::nothing(superblock);
    let mut cursors: Vec<Cursor> =
        found.heads.iter().filter(|head| head.serial != 0).map(|head| Cursor::new(*head)).collect();
    for (stream, cursor) in cursors.iter_mut().enumerate() {
        note_segment(segments, cursor.head, stream);
        replayer.look(cursor)?;
    }
    loop {
        let next = found.next_sequence;
        let is_next = |cursor: &Cursor| cursor.header.is_some_and(|it| it.sequence == next);
        let Some(stream) = cursors.iter().position(is_next) else { break };
        let cursor = &mut cursors[stream];
        if cursor.header.is_some_and(|header| header.generation > superblock.generation) {
            found.damage = Some("a newer superblock than the ones found has existed".into());
            break;
        }
        if !replayer.apply(cursor, map, &mut found)? {
            break;
        }
        if cursor.head.block == 0 {
            note_segment(segments, cursor.head, stream);
        }
        replayer.look(cursor)?;
    }
    for cursor in &mut cursors {
        if found.damage.is_none() {
            found.damage = replayer.find_promises(cursor, found.next_sequence)?;
        }
    }
    for (head, cursor) in found.heads.iter_mut().zip(&cursors) {
        *head = cursor.head;
    }
    Ok(found)
}

fn note_segment(segments: &mut SegmentTable, head: HeadPlace, stream: usize) {
    let segment = Segment {
        state: State::Sealed,
        class: stream as u8,
        serial: head.serial,
        ..segments.get(head.segment)
    };
    segments.set(head.segment, segment);
}

impl Cursor {
    fn new(head: HeadPlace) -> Self {
        Self { head, window: Window::default(), header: None, entries: Vec::new() }
    }
}

impl Replayer<'_> {
    fn show(&mut self, cursor: &mut Cursor, first: u32, count: u32) -> Result<bool, LoadError> {
        let segment = cursor.head.segment;
        Ok(cursor.window.show(self.reader, self.shape, self.file_blocks, segment, first, count)?)
    }

    /// Reads the header at the cursor, if there is one that belongs there.
    fn look(&mut self, cursor: &mut Cursor) -> Result<(), LoadError> {
        cursor.header = None;
        let at = cursor.head.block;
        if !self.show(cursor, at, 1)? {
            return Ok(());
        }
        let header = self.codec.decode(cursor.window.block(at), &mut cursor.entries);
        cursor.header = header.filter(|header| {
            header.serial == cursor.head.serial
                && header.position == at
                && matches!(header.kind, Kind::Writes | Kind::Seal)
        });
        Ok(())
    }

    /// Applies the record at the cursor and moves on; `false` if it is not whole.
    fn apply(
        &mut self,
        cursor: &mut Cursor,
        map: &BlockMap,
        found: &mut Replay,
    ) -> Result<bool, LoadError> {
        let Some(header) = cursor.header else { return Ok(false) };
        let first = cursor.head.block;
        if !self.show(cursor, first, header.record_blocks())? || !self.is_whole(cursor, first) {
            return Ok(false);
        }
        found.next_sequence += 1;
        found.records += 1;
        found.blocks += u64::from(header.record_blocks());
        match (header.kind, cursor.entries.first()) {
            (Kind::Seal, Some(Entry::Next { serial })) => {
                let segment = u32::try_from(header.link).unwrap_or(0);
                if segment == 0 || segment >= self.limit {
                    found.damage = Some("a seal leads outside the image".into());
                    return Ok(false);
                }
                cursor.head = HeadPlace { serial: *serial, segment, block: 0 };
            }
            _ => {
                let address: Address = self.shape.address(cursor.head.segment, first);
                found.guest_blocks += u64::from(header.payload_blocks);
                apply_entries(&cursor.entries, address, map, |_| {});
                cursor.head.block += header.record_blocks();
            }
        }
        Ok(true)
    }

    /// Whether all data of the record is there, and is for this disk.
    fn is_whole(&self, cursor: &Cursor, first: u32) -> bool {
        let mut block = first;
        cursor.entries.iter().all(|entry| match *entry {
            Entry::Data { lba, checksum } => {
                block += 1;
                lba < self.blocks && crc32c::crc32c(cursor.window.block(block)) == checksum
            }
            Entry::Trim { lba, count } => {
                lba.checked_add(u64::from(count)).is_some_and(|end| end <= self.blocks)
            }
            Entry::Next { .. } => true,
            Entry::Leaf { .. } | Entry::Root { .. } | Entry::Moved { .. } => false,
        })
    }

    /// Looks behind the end for a record that knows the end to be durable: then this is no end.
    fn find_promises(
        &mut self,
        cursor: &mut Cursor,
        next: u64,
    ) -> Result<Option<String>, LoadError> {
        let mut entries = Vec::new();
        let start = cursor.head.block;
        for block in start..self.shape.segment_blocks {
            if !self.show(cursor, block, 1)? {
                break;
            }
            let Some(header) = self.codec.decode(cursor.window.block(block), &mut entries) else {
                continue;
            };
            let later = header.serial == cursor.head.serial && header.position == block;
            if later && header.sequence >= next && header.durable > next {
                return Ok(Some(format!(
                    "record {next} is damaged, and everything before record {} was durable: \
                     flushed writes would be lost",
                    header.durable
                )));
            }
        }
        Ok(None)
    }
}
