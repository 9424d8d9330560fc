//! Records that the maintenance worker writes: copies of live blocks, and maps. They are outside
//! the order of guest writes; of these, replay applies only copies in replayable streams.

use flowstone_block::Errno;
use flowstone_log_format::{Address, HeadPlace, Kind, Placed, RecordBuilder, Sequence, Stamp};

use super::Maintenance;
use crate::policy::{LIFETIME_CLEANED, LIFETIME_COLD, LIFETIME_MAP};
use crate::reserve::Opener;

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

impl Maintenance {
    /// Appends a record to the stream of a lifetime; returns the address of its header.
    pub fn append(
        &mut self,
        lifetime: u8,
        kind: Kind,
        link: u64,
        builder: &mut RecordBuilder,
    ) -> Result<Address, Errno> {
        let (placed, before) = self.place_record(lifetime, kind, link, builder.payload())?;
        let record = builder.finish(self.core.codec, &placed);
        if let Err(errno) = self.file.write(placed.address.offset(), record) {
            self.abandon_stream(lifetime, before);
            return Err(errno);
        }
        self.appended(&placed);
        Ok(placed.address)
    }

    /// Places the next record of a stream and advances the stream. Also returns the previous state
    /// of the stream, for [`abandon_stream`](Self::abandon_stream) if the record cannot be written.
    pub fn place_record(
        &mut self,
        lifetime: u8,
        kind: Kind,
        link: u64,
        payload: u32,
    ) -> Result<(Placed, AppendStream), Errno> {
        let mut stream = self.stream_with_room(lifetime, 1 + payload)?;
        let (before, shape, stamp) = (stream, self.core.shape, self.stamp());
        let placed = stream.place.append(shape, stamp, kind, payload, link);
        self.streams[usize::from(lifetime)] = Some(stream);
        Ok((placed, before))
    }

    /// Counts a record of a stream as written, and so are all before it.
    pub fn appended(&mut self, placed: &Placed) {
        let blocks = u64::from(placed.header.record_blocks());
        let mut state = self.core.append_state();
        state.since_checkpoint += blocks;
        state.costs.header_blocks += 1;
        state.totals.appended_blocks += blocks;
        match placed.header.kind {
            Kind::Map => state.totals.map_blocks += blocks,
            _ => state.totals.relocated_blocks += blocks,
        }
    }

    /// Returns the stamp of the next record of the maintenance worker, which has its own numbering.
    fn stamp(&mut self) -> Stamp {
        self.records += 1;
        Stamp {
            sequence: Sequence::new(self.records),
            // For copies: the committed sequence number when they were made.
            durable: self.core.append_state().committed(),
            generation: self.superblock.generation,
        }
    }

    /// Makes sure that the next record of `blocks` blocks fits into the open segment of the stream.
    pub fn reserve_stream(&mut self, lifetime: u8, blocks: u32) -> Result<(), Errno> {
        let stream = self.stream_with_room(lifetime, blocks)?;
        self.streams[usize::from(lifetime)] = Some(stream);
        Ok(())
    }

    /// Returns the stream of a lifetime, in a new segment if the old one has too little room.
    fn stream_with_room(&mut self, lifetime: u8, blocks: u32) -> Result<AppendStream, Errno> {
        let old = self.streams[usize::from(lifetime)];
        if let Some(stream) = old.filter(|it| it.place.room(self.core.shape) >= blocks) {
            return Ok(stream);
        }
        if !self.may_open(lifetime, old.is_some()) {
            return Err(Errno::NOSPC);
        }
        let (segment, incarnation) = self.take_segment(lifetime)?;
        let place = HeadPlace::start_of(segment, incarnation);
        let replayable = match old {
            None => false,
            Some(old) => {
                if let Err(errno) = self.write_seal(old.place, place) {
                    let mut state = self.core.append_state();
                    let clock = state.clock;
                    state.segments.seal(segment, clock);
                    drop(state);
                    self.seal_stream(lifetime);
                    return Err(errno);
                }
                self.seal_stream(lifetime);
                old.replayable
            }
        };
        Ok(AppendStream { place, births: 0, copies: 0, replayable })
    }

    /// Returns whether a segment of this lifetime may be opened, in place of a full one or in
    /// addition.
    fn may_open(&self, lifetime: u8, replaces: bool) -> bool {
        let state = self.core.append_state();
        let reserve = state.reserve(&self.core.map, replaces);
        let (opener, available) = match lifetime {
            // The last resort tries a full host once more.
            LIFETIME_MAP => (Opener::Map, state.segments.ready_or_obtainable()),
            _ => (Opener::Copy, self.available(&state)),
        };
        reserve.may_open(opener, available, state.trim_heads())
    }

    /// Writes the seal that leads replay to the next segment of the stream.
    fn write_seal(&mut self, mut place: HeadPlace, next: HeadPlace) -> Result<(), Errno> {
        let seal = place.go_on_at(next, self.core.shape, self.stamp());
        let mut builder = RecordBuilder::new(0);
        builder.push(next.entry_of_seal());
        self.file.write(seal.address.offset(), builder.finish(self.core.codec, &seal))?;
        let mut state = self.core.append_state();
        state.costs.seal_blocks += 1;
        state.totals.appended_blocks += 1;
        Ok(())
    }

    /// Abandons the place of a failed write. The next attempt uses another segment, since the place
    /// may be bad. A segment to which nothing was written is returned, so that repeated failures
    /// use up no segments. No write to the stream is in flight any more.
    pub fn abandon_stream(&mut self, lifetime: u8, before: AppendStream) {
        if before.place.block == 0 && !before.replayable {
            self.core.append_state().segments.give_back(before.place.segment);
            self.streams[usize::from(lifetime)] = None;
        } else {
            let now = self.streams[usize::from(lifetime)].unwrap_or(before);
            self.streams[usize::from(lifetime)] = Some(AppendStream { place: before.place, ..now });
            self.seal_stream(lifetime);
        }
    }

    /// Ends the stream of a lifetime. All its copies have been applied to the map.
    pub fn seal_stream(&mut self, lifetime: u8) {
        let Some(stream) = self.streams[usize::from(lifetime)].take() else { return };
        let mut state = self.core.append_state();
        let clock = state.clock;
        let birth = match stream.copies {
            0 => clock,
            copies => (stream.births / u128::from(copies)) as u64,
        };
        state.segments.seal_copies(stream.place.segment, clock, birth);
    }

    /// Selects the stream that takes copies when segments are short, instead of this lifetime's:
    /// the one with most room. The other streams are sealed, so that cleaning can regain their
    /// unused room.
    pub fn merge_streams(&mut self, lifetime: u8) -> u8 {
        let room = |lifetime: &u8| {
            let stream = self.streams[usize::from(*lifetime)]?;
            Some(stream.place.room(self.core.shape))
        };
        let open = (LIFETIME_CLEANED..=LIFETIME_COLD).filter(|lifetime| room(lifetime).is_some());
        let Some(roomiest) = open.max_by_key(room) else { return lifetime };
        let others = (LIFETIME_CLEANED..=LIFETIME_COLD).filter(|other| *other != roomiest);
        others.for_each(|other| self.seal_stream(other));
        roomiest
    }

    /// Returns the maximum number of copies in the next record of this lifetime: the rest of the
    /// open segment, or a full record in another one if little is left.
    pub fn copies_that_fit(&self, lifetime: u8) -> u32 {
        let full = self.core.shape.record_payload_max();
        match self.room_for_copies(lifetime) {
            0..COPIES_LEAST => full,
            room => room.min(full),
        }
    }

    /// Returns whether the next copies open another segment.
    pub fn is_stream_full(&self, lifetime: u8) -> bool {
        self.room_for_copies(lifetime) < COPIES_LEAST
    }

    /// Returns whether a record with `payload` copies goes into the open segment.
    pub fn stays_in_segment(&self, lifetime: u8, payload: u32) -> bool {
        self.room_for_copies(lifetime) >= payload
    }

    fn room_for_copies(&self, lifetime: u8) -> u32 {
        let room = |stream: AppendStream| stream.place.room(self.core.shape).saturating_sub(1);
        self.streams[usize::from(lifetime)].map_or(0, room)
    }
}
