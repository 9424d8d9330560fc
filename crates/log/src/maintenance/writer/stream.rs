//! Records that the maintenance worker writes: copies of live blocks, and maps. They are outside
//! the order of guest writes; of these, replay applies only copies in replayable streams.

use std::sync::Arc;

use flowstone_block::{Errno, mutated};
use flowstone_log_format::{
    Address, HeadPlace, Kind, LIFETIME_CLEANED, LIFETIME_COLD, LIFETIME_MAP, LIFETIMES, MapEntry,
    Placed, RecordBuilder, Sequence, Stamp,
};

use super::Writer;
use crate::log::Log;
use crate::log::reserve::Opener;
use crate::volume::Volume;

/// Minimum room for copies at the end of a segment; less is not used.
const COPIES_LEAST: u32 = 4;

/// A stream of the maintenance worker.
#[derive(Clone, Copy, Debug)]
pub struct AppendStream {
    pub place: HeadPlace,
    /// Sum of the births of the blocks in its segment, and their number: copies keep their age.
    pub births: u128,
    pub copies: u64,
    /// Whether replay finds it: the newest superblock names its head, or one that seals lead here
    /// from.
    pub replayable: bool,
}

/// A copied block that is not in the map yet.
#[derive(Clone, Copy, Debug)]
pub struct Move {
    pub lba: u64,
    pub old: MapEntry,
}

/// The streams of the maintenance worker.
pub struct Streams {
    log: Arc<Log>,
    volume: Arc<Volume>,
    open: [Option<AppendStream>; LIFETIMES],
    /// Number of records written; the sequence number of the next one.
    records: u64,
}

impl Streams {
    pub fn new(log: Arc<Log>, volume: Arc<Volume>) -> Self {
        Self { log, volume, open: Default::default(), records: 0 }
    }

    /// Returns the stream of a lifetime, if one is open.
    pub fn of(&self, lifetime: u8) -> Option<AppendStream> {
        self.open[usize::from(lifetime)]
    }

    /// Counts a record of a stream as written, and so are all before it.
    pub fn appended(&mut self, placed: &Placed) {
        let mut state = self.log.append_state();
        state.accounting_mut().appended(placed.header.kind, placed.header.record_blocks());
    }

    /// Returns the stamp of the next record of the maintenance worker, which has its own numbering.
    fn stamp(&mut self) -> Stamp {
        self.records += 1;
        let state = self.log.append_state();
        Stamp {
            sequence: Sequence::new(self.records),
            // For copies: the committed sequence number when they were made.
            durable: state.committed(),
            generation: state.generation(),
        }
    }

    /// Abandons the place of a failed write. The next attempt uses another segment, since the place
    /// may be bad. A segment to which nothing was written is returned, so that repeated failures
    /// use up no segments. No write to the stream is in flight any more.
    pub fn abandon(&mut self, lifetime: u8, before: AppendStream) {
        if before.place.block == 0 && !before.replayable {
            self.log.append_state().segments_mut().give_back(before.place.segment);
            self.open[usize::from(lifetime)] = None;
        } else {
            let now = self.open[usize::from(lifetime)].unwrap_or(before);
            self.open[usize::from(lifetime)] = Some(AppendStream { place: before.place, ..now });
            self.seal(lifetime);
        }
    }

    /// Notes that all have been in a checkpoint: a superblock names the heads of those that replay
    /// follows.
    pub fn become_replayable(&mut self) {
        self.open.iter_mut().flatten().for_each(|stream| stream.replayable = true);
    }

    /// Ends the stream of a lifetime. All its copies have been applied to the map.
    pub fn seal(&mut self, lifetime: u8) {
        let Some(stream) = self.open[usize::from(lifetime)].take() else { return };
        let mut state = self.log.append_state();
        let clock = state.accounting().clock();
        let birth = match stream.copies {
            0 => clock,
            copies => (stream.births / u128::from(copies)) as u64,
        };
        state.segments_mut().seal_copies(stream.place.segment, clock, birth);
    }

    /// Selects the stream that takes copies when segments are short, instead of this lifetime's:
    /// the one with most room. The other streams are sealed, so that cleaning can regain their
    /// unused room.
    pub fn merge(&mut self, lifetime: u8) -> u8 {
        let room = |lifetime: &u8| {
            let stream = self.open[usize::from(*lifetime)]?;
            Some(stream.place.room(self.log.shape))
        };
        let open = (LIFETIME_CLEANED..=LIFETIME_COLD).filter(|lifetime| room(lifetime).is_some());
        let Some(roomiest) = open.max_by_key(room) else { return lifetime };
        let others = (LIFETIME_CLEANED..=LIFETIME_COLD).filter(|other| *other != roomiest);
        others.for_each(|other| self.seal(other));
        roomiest
    }

    /// Returns the maximum number of copies in the next record of this lifetime: the rest of the
    /// open segment, or a full record in another one if little is left.
    pub fn copies_that_fit(&self, lifetime: u8) -> u32 {
        let full = self.log.shape.record_payload_max();
        match self.room_for_copies(lifetime) {
            0..COPIES_LEAST => full,
            room => room.min(full),
        }
    }

    /// Returns whether the next copies open another segment.
    pub fn is_full(&self, lifetime: u8) -> bool {
        self.room_for_copies(lifetime) < COPIES_LEAST
    }

    /// Returns whether a record with `payload` copies goes into the open segment.
    pub fn stays_in_segment(&self, lifetime: u8, payload: u32) -> bool {
        self.room_for_copies(lifetime) >= payload
    }

    fn room_for_copies(&self, lifetime: u8) -> u32 {
        let room = |stream: AppendStream| stream.place.room(self.log.shape).saturating_sub(1);
        self.open[usize::from(lifetime)].map_or(0, room)
    }

    /// Applies the copies of a record to map entries that have not changed meanwhile.
    pub fn apply_moves(&mut self, lifetime: u8, header: Address, moves: &[Move], birth: u64) {
        let target = self.log.shape.segment_of(header);
        let copies = moves.len() as u32;
        let mut state = self.log.append_state();
        state.accounting_mut().change();
        state.segments_mut().gain(target, copies);
        let mut address = header;
        for moved in moves {
            address = address.forward(1);
            let new = MapEntry::new(address, moved.old.checksum());
            let compares = mutated("log.clean.overwrites-newer-data", true, false);
            let old = if compares { moved.old } else { self.volume.map.get(moved.lba) };
            let dies = if self.volume.map.replace_if(moved.lba, old, new) {
                moved.old.address()
            } else {
                // The guest has written the block meanwhile: the copy is dead.
                address
            };
            state.segments_mut().lose(dies);
        }
        if let Some(stream) = &mut self.open[usize::from(lifetime)] {
            stream.births += u128::from(birth) * u128::from(copies);
            stream.copies += u64::from(copies);
        }
    }
}

impl Writer {
    /// Appends a record to the stream of a lifetime; returns the address of its header.
    pub fn append(
        &mut self,
        lifetime: u8,
        kind: Kind,
        link: u64,
        builder: &mut RecordBuilder,
    ) -> Result<Address, Errno> {
        let (placed, before) = self.place(lifetime, kind, link, builder.payload())?;
        let record = builder.finish(self.log.codec, &placed);
        if let Err(errno) = self.space.store.append(lifetime, placed.address, record) {
            self.streams.abandon(lifetime, before);
            return Err(errno);
        }
        self.streams.appended(&placed);
        Ok(placed.address)
    }

    /// Places the next record of a stream and advances the stream. Also returns the previous state
    /// of the stream, for [`abandon`](Streams::abandon) if the record cannot be written.
    pub fn place(
        &mut self,
        lifetime: u8,
        kind: Kind,
        link: u64,
        payload: u32,
    ) -> Result<(Placed, AppendStream), Errno> {
        let mut stream = self.with_room(lifetime, 1 + payload)?;
        let (before, shape, stamp) = (stream, self.log.shape, self.streams.stamp());
        let placed = stream.place.append(shape, stamp, kind, payload, link);
        self.streams.open[usize::from(lifetime)] = Some(stream);
        Ok((placed, before))
    }

    /// Makes sure that the next record of `blocks` blocks fits into the open segment of the stream.
    pub fn reserve(&mut self, lifetime: u8, blocks: u32) -> Result<(), Errno> {
        let stream = self.with_room(lifetime, blocks)?;
        self.streams.open[usize::from(lifetime)] = Some(stream);
        Ok(())
    }

    /// Returns the stream of a lifetime, in a new segment if the old one has too little room.
    fn with_room(&mut self, lifetime: u8, blocks: u32) -> Result<AppendStream, Errno> {
        let old = self.streams.open[usize::from(lifetime)];
        if let Some(stream) = old.filter(|it| it.place.room(self.log.shape) >= blocks) {
            return Ok(stream);
        }
        if !self.may_open(lifetime, old.is_some()) {
            return Err(Errno::NOSPC);
        }
        let (segment, incarnation) = self.space.take_segment(lifetime)?;
        let place = HeadPlace::start_of(segment, incarnation);
        let replayable = match old {
            None => false,
            Some(old) => {
                if let Err(errno) = self.write_seal(lifetime, old.place, place) {
                    self.log.append_state().seal(segment);
                    self.streams.seal(lifetime);
                    return Err(errno);
                }
                self.streams.seal(lifetime);
                old.replayable
            }
        };
        Ok(AppendStream { place, births: 0, copies: 0, replayable })
    }

    /// Returns whether a segment of this lifetime may be opened, in place of a full one or in
    /// addition.
    fn may_open(&self, lifetime: u8, replaces: bool) -> bool {
        let state = self.log.append_state();
        let reserve = state.reserve(&self.volume, replaces);
        let (opener, available) = match lifetime {
            // The last resort tries a full host once more.
            LIFETIME_MAP => (Opener::Map, state.segments().ready_or_obtainable()),
            _ => (Opener::Copy, self.space.available(&state)),
        };
        reserve.may_open(opener, available, state.trim_heads())
    }

    /// Writes the seal that leads replay to the next segment of the stream.
    fn write_seal(
        &mut self,
        lifetime: u8,
        mut place: HeadPlace,
        next: HeadPlace,
    ) -> Result<(), Errno> {
        let seal = place.go_on_at(next, self.log.shape, self.streams.stamp());
        let mut builder = RecordBuilder::new(0);
        builder.push(next.entry_of_seal());
        self.space.store.append(lifetime, seal.address, builder.finish(self.log.codec, &seal))?;
        self.log.append_state().accounting_mut().sealed_copies();
        Ok(())
    }
}
