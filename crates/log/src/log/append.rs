//! The end of the log: the place of the next record, and the records in flight until they
//! [commit](commit).
//!
//! All of this runs under the log's one lock, which is held only briefly: to place a record, and to
//! apply a committed one to the map. Data is copied, checksummed and written outside it.

pub mod commit;
mod heads;
mod parts;
mod room;

use std::ops::Range;
use std::sync::Arc;

use flowstone_block::{Clock, Errno, mutated};
use flowstone_image::runtime::wakers::QueueWaker;
use flowstone_log_format::{
    Entry, HeadPlace, Kind, MapEntry, Placed, STREAMS_MAX, SegmentId, Sequence, Shape, Stamp,
};
use flowstone_log_store::segments::SegmentTable;

use self::commit::CommitOrder;
pub use self::heads::Head;
use self::room::Want;
pub use self::room::{FULL_RETRY, Full};
use super::accounting::Accounting;
use super::rate::CleaningRate;
use super::reserve::Opener;
use crate::volume::Volume;

/// Whether records can be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Health {
    Running,
    /// A record could not be written: none is placed until the maintenance worker has started new
    /// heads.
    Restarting,
    /// The new heads could not be started either: nothing is written until the image is reopened.
    Stopped,
}

/// A record to be placed.
pub struct Draft<'a> {
    pub stream: usize,
    pub entries: &'a [Entry],
    pub payload_blocks: u32,
    /// Partial blocks, and the map entries with which their rest was read.
    pub expected: &'a [(u64, MapEntry)],
    /// Whether the record only unmaps blocks: such a record may use segments reserved for trims.
    pub only_trims: bool,
}

impl Draft<'_> {
    const fn opener(&self) -> Opener {
        if self.only_trims { Opener::Trim } else { Opener::Write }
    }
}

/// Why a record gets no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaceError {
    /// No room now: the maintenance worker wakes the queue when it may try again.
    Wait,
    /// The rest of this partial block has changed, or is about to.
    Stale {
        lba: u64,
        /// The committed sequence number at that time, if the block is in a record that has not
        /// committed.
        in_flight: Option<Sequence>,
    },
    /// There is no room, and waiting does not help.
    Full(Errno),
}

/// The place of a record to write.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub record: Placed,
    /// Seal of the previous segment, to be written too, if the record is the first of a segment.
    /// Its sequence number is the one before the record's.
    pub seal: Option<(Placed, Entry)>,
}

/// See the module.
pub struct AppendState {
    shape: Shape,
    segments: SegmentTable,
    heads: [Head; STREAMS_MAX],
    health: Health,
    accounting: Accounting,
    /// Clock of the file.
    time: Clock,
    /// Number of the newest durable checkpoint.
    generation: u64,
    /// All records before this sequence number are durable.
    durable: Sequence,
    writes: Want,
    trims: Want,
    /// Amount of cleaning that writes have to wait for.
    rate: CleaningRate,
    /// Error and time when a full host kept new heads from being started.
    restart_full: Option<Full>,
    order: CommitOrder,
    /// Queues that wait for a block that is in flight.
    watchers: Vec<Arc<QueueWaker>>,
}

/// Effects to apply after the lock is released.
#[derive(Default)]
pub struct Effects {
    /// Owners whose records have committed or failed.
    pub wake: Vec<Arc<QueueWaker>>,
    /// A maintenance pass is due.
    pub wake_maintenance: bool,
}

impl AppendState {
    pub fn new(shape: Shape, segments: SegmentTable, next_sequence: Sequence) -> Self {
        Self {
            shape,
            segments,
            heads: [Head::default(); STREAMS_MAX],
            health: Health::Running,
            accounting: Accounting::default(),
            time: Clock::default(),
            generation: 0,
            durable: next_sequence,
            writes: Want::default(),
            trims: Want::default(),
            rate: CleaningRate::default(),
            restart_full: None,
            order: CommitOrder::new(next_sequence),
            watchers: Vec::new(),
        }
    }

    /// Goes on where the log of an image ended, in new heads if it `starts_anew`.
    pub fn resume(
        &mut self,
        accounting: Accounting,
        generation: u64,
        heads: [HeadPlace; STREAMS_MAX],
        starts_anew: bool,
    ) {
        (self.accounting, self.generation) = (accounting, generation);
        self.heads = heads.map(|place| Head { place, ..Head::default() });
        if starts_anew {
            self.health = Health::Restarting;
        }
    }

    /// Returns the first sequence number that has not committed.
    pub fn committed(&self) -> Sequence {
        self.order.committed()
    }

    /// Returns the sequence number that the next record gets.
    pub fn next_sequence(&self) -> Sequence {
        self.order.next()
    }

    /// Returns whether an uncommitted record concerns blocks in this range.
    pub fn is_any_in_flight(&self, blocks: Range<u64>) -> bool {
        self.order.mentions_any(blocks)
    }

    fn stamp(&self) -> Stamp {
        let (sequence, durable) = (self.order.next(), self.durable);
        Stamp { sequence, durable, generation: self.generation }
    }

    /// Gives a draft the next place and sequence number. The entries are kept until the commit.
    /// Those beyond the end of the disk must not get into the log.
    pub fn place(
        &mut self,
        draft: &Draft<'_>,
        volume: &Volume,
        owner: &Arc<QueueWaker>,
        effects: &mut Effects,
    ) -> Result<Place, PlaceError> {
        match self.health {
            Health::Running => {}
            Health::Restarting => {
                // Each request makes the maintenance worker try the host again.
                effects.wake_maintenance |= self.restart_full.is_some();
                let fresh = self.restart_full.filter(|full| full.is_fresh(&self.time));
                return Err(fresh.map_or(PlaceError::Wait, |full| PlaceError::Full(full.errno)));
            }
            Health::Stopped => return Err(PlaceError::Full(Errno::IO)),
        }
        let blocks = volume.blocks();
        if let Some(entry) = draft.entries.iter().find(|entry| entry.blocks().end > blocks) {
            return Err(PlaceError::Stale { lba: entry.blocks().start, in_flight: None });
        }
        for &(lba, map_entry) in draft.expected {
            if self.order.mentions_any(lba..lba + 1) {
                self.watchers.push(Arc::clone(owner));
                return Err(PlaceError::Stale { lba, in_flight: Some(self.committed()) });
            }
            let is_current = volume.map.get(lba) == map_entry;
            let is_current = mutated("log.place.rest-of-block-unchecked", is_current, true);
            if !is_current {
                return Err(PlaceError::Stale { lba, in_flight: None });
            }
        }
        let seal = self.make_room(draft, volume, owner, effects)?;
        let room = self.heads[draft.stream].place.room(self.shape);
        self.rate.wrote(draft.payload_blocks, room);
        let stamp = self.stamp();
        let place = &mut self.heads[draft.stream].place;
        let seal = seal.map(|seal| (seal, place.entry_of_seal()));
        let record = place.append(self.shape, stamp, Kind::Writes, draft.payload_blocks, 0);
        self.order.push(owner, &record, draft.entries);
        self.accounting.appended(Kind::Writes, record.header.record_blocks());
        effects.wake_maintenance |= self.accounting.change();
        Ok(Place { record, seal })
    }

    /// Makes sure that the stream's head has room for the draft and, later, a seal. Opens the next
    /// segment if necessary, and returns the seal of the old one.
    fn make_room(
        &mut self,
        draft: &Draft<'_>,
        volume: &Volume,
        owner: &Arc<QueueWaker>,
        effects: &mut Effects,
    ) -> Result<Option<Placed>, PlaceError> {
        let opener = draft.opener();
        let head = self.heads[draft.stream];
        if !head.has_space {
            return Err(self.refuse(opener, effects));
        }
        let room = head.place.room(self.shape);
        let pays = mutated("log.rate.holds-trims", opener == Opener::Write, true);
        if pays && !self.rate.admit(room) {
            return Err(PlaceError::Wait);
        }
        if room > draft.payload_blocks {
            let for_trims = head.for_trims;
            let for_trims = mutated("log.reserve.writes-fill-heads-of-trims", for_trims, false);
            if for_trims && opener == Opener::Write {
                // Taking over a head of trims counts as opening one.
                if !self.may_open_head(opener, volume) {
                    return Err(self.refuse(opener, effects));
                }
                self.heads[draft.stream].for_trims = false;
            }
            return Ok(None);
        }
        if !self.may_open_head(opener, volume) {
            return Err(self.refuse(opener, effects));
        }
        let for_trims = !self.may_open_head(Opener::Write, volume);
        let Some((segment, incarnation)) = self.segments.open(draft.stream as u8) else {
            return Err(self.refuse(opener, effects));
        };
        // A ready segment has been used: the maintenance worker prepares another.
        effects.wake_maintenance = true;
        let mut place = head.place;
        let next = HeadPlace::start_of(segment, incarnation);
        let seal = place.go_on_at(next, self.shape, self.stamp());
        self.order.push(owner, &seal, &[next.entry_of_seal()]);
        self.accounting.sealed();
        effects.wake_maintenance |= self.accounting.change();
        self.rate.opened(self.shape.segment_blocks);
        self.heads[draft.stream] = Head { place, has_space: true, for_trims };
        Ok(Some(seal))
    }

    fn refuse(&mut self, opener: Opener, effects: &mut Effects) -> PlaceError {
        effects.wake_maintenance = true;
        let want = if opener == Opener::Trim { &mut self.trims } else { &mut self.writes };
        match want.full.filter(|full| full.is_fresh(&self.time)) {
            Some(full) => PlaceError::Full(full.errno),
            None => {
                want.starved = true;
                PlaceError::Wait
            }
        }
    }

    /// Seals a segment: nothing more is appended to it.
    pub fn seal(&mut self, segment: SegmentId) {
        self.segments.seal(segment, self.accounting.clock());
    }
}

#[cfg(feature = "model")]
#[cfg(test)]
mod models;
#[cfg(test)]
mod tests;
