//! The end of the log: where the next record goes, which are on their way, and what commits.
//!
//! Everything here happens under the log's one lock, which is held for moments: to place a record,
//! and to apply a committed one to the map. Data is copied, summed and written outside it.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flowstone_block::{Errno, mutant};

use super::address::{Address, MapEntry};
use super::ids::{Incarnation, Sequence};
use super::map::BlockMap;
use super::record::{Entry, Header, Kind};
use super::reserve::{Demand, Opener, Reserve};
use super::segments::SegmentTable;
use super::shape::Shape;
use super::superblock::{HeadPlace, Totals};
use crate::runtime::wakers::QueueWaker;

/// Streams of guest data.
pub const STREAMS_MAX: usize = 2;

/// The place where a stream is appended to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Head {
    pub place: HeadPlace,
    /// Whether the host has given the segment space.
    pub has_space: bool,
    /// It was opened when writes had to leave the segment alone: only trims are appended until
    /// there is room, so no live block is in it, and the first checkpoint after its end frees it.
    pub for_trims: bool,
}

/// Whether records can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    Running,
    /// A record could not be written: nothing is made until the maintenance worker has started new
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
    /// Blocks of which only a part is new, and the map entries that the rest was read with.
    pub expected: &'a [(u64, MapEntry)],
    /// Whether it only unmaps blocks: that may use segments that others must leave.
    pub only_trims: bool,
}

impl Draft<'_> {
    const fn opener(&self) -> Opener {
        if self.only_trims { Opener::Trim } else { Opener::Write }
    }
}

/// Whether requests wait for room, or have been refused it. Writes and trims have one each, since
/// trims have room when writes have none.
#[derive(Clone, Copy, Debug, Default)]
pub struct Want {
    /// A request waits.
    pub starved: bool,
    /// Waiting brought nothing, because of this.
    pub full: Option<Full>,
}

/// Why there was no room, the last time that it was looked for.
#[derive(Clone, Copy, Debug)]
pub struct Full {
    pub errno: Errno,
    pub at: Instant,
}

impl Full {
    pub fn now(errno: Errno) -> Self {
        Self { errno, at: Instant::now() }
    }

    /// Whether this was just now. A later request waits until the host has been asked again: there
    /// may be room by then, and nothing else would find that out.
    fn is_fresh(self) -> bool {
        self.at.elapsed() < FULL_RETRY || mutant("log.full.believed-for-ever")
    }
}

/// How long a host that was full is not asked for space again.
pub const FULL_RETRY: Duration = Duration::from_millis(100);

/// Why a record has no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaceError {
    /// Not now: the maintenance worker wakes the queue when it may try again.
    Wait,
    /// The rest of this block has changed, or is about to.
    Stale {
        lba: u64,
        /// What had committed, if the block is on its way in a record that has not.
        in_flight: Option<Sequence>,
    },
    /// There is no room, and waiting brings none.
    Full(Errno),
}

/// A record that has a place: write the seal, if there is one, and the record there.
#[derive(Clone, Copy, Debug)]
pub struct Placed {
    pub header: Header,
    pub address: Address,
    /// Ends the segment before. It has the sequence number before the record's.
    pub seal: Option<Seal>,
}

/// A seal to be written.
#[derive(Clone, Copy, Debug)]
pub struct Seal {
    pub header: Header,
    pub address: Address,
    pub next_incarnation: Incarnation,
}

struct InFlightRecord {
    owner: Arc<QueueWaker>,
    address: Address,
    kind: Kind,
    entries: Vec<Entry>,
    written: bool,
    /// After a failure: the owner knows that this record will not commit.
    given_up: bool,
}

/// See the module.
pub struct AppendState {
    pub shape: Shape,
    pub segments: SegmentTable,
    pub heads: [Head; STREAMS_MAX],
    pub health: Health,
    pub totals: Totals,
    /// Guest blocks committed since the image was made: the log's own time.
    pub clock: u64,
    /// Number of the newest durable checkpoint.
    pub generation: u64,
    /// Everything before this sequence number is durable.
    pub durable: Sequence,
    /// Blocks appended since the last checkpoint.
    pub since_checkpoint: u64,
    pub writes: Want,
    pub trims: Want,
    /// Why new heads could not be started yet: the host was full.
    pub restart_full: Option<Full>,
    /// Whether anything has changed since the last checkpoint.
    pub changed: bool,
    /// Leaves that a full map of the disk has.
    pub disk_leaves: u64,
    next_sequence: Sequence,
    committed: Sequence,
    in_flight: VecDeque<InFlightRecord>,
    spare_entries: Vec<Vec<Entry>>,
    /// Queues that wait for a block which is on its way.
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
            totals: Totals::default(),
            clock: 0,
            generation: 0,
            durable: next_sequence,
            since_checkpoint: 0,
            writes: Want::default(),
            trims: Want::default(),
            restart_full: None,
            changed: false,
            disk_leaves: 0,
            next_sequence,
            committed: next_sequence,
            in_flight: VecDeque::new(),
            spare_entries: Vec::new(),
            watchers: Vec::new(),
        }
    }

    /// Everything before this sequence number has committed.
    pub fn committed(&self) -> Sequence {
        self.committed
    }

    /// The sequence number that the next record gets.
    pub fn next_sequence(&self) -> Sequence {
        self.next_sequence
    }

    /// An empty list of entries, used before.
    pub fn spare_entries(&mut self) -> Vec<Entry> {
        self.spare_entries.pop().unwrap_or_default()
    }

    /// The reserves as of now. `replaces` says whether a segment that is about to be opened for
    /// data takes the place of one that is full.
    pub fn reserve(&self, map: &BlockMap, replaces: bool) -> Reserve {
        let in_flight: usize = self.in_flight.iter().map(|it| it.entries.len()).sum();
        Reserve::of(&Demand {
            shape: self.shape,
            changed_leaves: map.changed_count().into(),
            leaves: map.leaf_count().into(),
            disk_leaves: self.disk_leaves,
            open_for_data: self.segments.open_for_data() + u32::from(!replaces),
            in_flight: in_flight as u64,
            used: self.segments.used(),
            map_segments: self.segments.used_for_maps(),
        })
    }

    /// Heads that only trims use.
    pub fn trim_heads(&self) -> u32 {
        self.heads.iter().filter(|head| head.for_trims).count() as u32
    }

    /// At the start: a head in which nothing lives is one that trims opened, if segments are short.
    pub fn find_trim_heads(&mut self, map: &BlockMap) {
        let reserve = self.reserve(map, true);
        for stream in 0..self.shape.streams as usize {
            let available = self.segments.ready_or_obtainable();
            let short = !reserve.may_open(Opener::Write, available, self.trim_heads());
            let head = &mut self.heads[stream];
            head.for_trims = short && self.segments.get(head.place.segment).live == 0;
        }
    }

    /// Segments that guests must leave when they write.
    pub fn kept_from_writes(&self, map: &BlockMap) -> u32 {
        let reserve = self.reserve(map, true).left_by(Opener::Write);
        reserve.saturating_sub(self.trim_heads())
    }

    /// Whether a head may be opened for this, in place of another one.
    pub fn may_open_head(&self, opener: Opener, map: &BlockMap) -> bool {
        self.reserve(map, true).may_open(opener, self.segments.ready(), self.trim_heads())
    }

    fn want(&mut self, opener: Opener) -> &mut Want {
        if opener == Opener::Trim { &mut self.trims } else { &mut self.writes }
    }

    /// Whether a request waits for room, or has been refused it.
    pub fn wants_room(&self) -> bool {
        [self.writes, self.trims].iter().any(|want| want.starved || want.full.is_some())
    }

    /// Gives a draft the next place and sequence number. `entries` goes along until the commit. The
    /// disk has so many blocks: what is beyond them must not get into the log.
    pub fn place(
        &mut self,
        draft: &Draft<'_>,
        map: &BlockMap,
        blocks: u64,
        owner: &Arc<QueueWaker>,
        effects: &mut Effects,
    ) -> Result<Placed, PlaceError> {
        match self.health {
            Health::Running => {}
            Health::Restarting => {
                // With each request the host is asked again.
                effects.wake_maintenance |= self.restart_full.is_some();
                let fresh = self.restart_full.filter(|full| full.is_fresh());
                return Err(fresh.map_or(PlaceError::Wait, |full| PlaceError::Full(full.errno)));
            }
            Health::Stopped => return Err(PlaceError::Full(Errno::IO)),
        }
        if let Some(entry) = draft.entries.iter().find(|entry| entry.blocks().end > blocks) {
            return Err(PlaceError::Stale { lba: entry.blocks().start, in_flight: None });
        }
        for &(lba, map_entry) in draft.expected {
            if self.is_in_flight(lba) {
                self.watchers.push(Arc::clone(owner));
                return Err(PlaceError::Stale { lba, in_flight: Some(self.committed) });
            }
            if map.get(lba) != map_entry && !mutant("log.place.rest-of-block-unchecked") {
                return Err(PlaceError::Stale { lba, in_flight: None });
            }
        }
        let blocks = 1 + draft.payload_blocks;
        let seal = self.make_room(draft, blocks, map, owner, effects)?;
        let head = &mut self.heads[draft.stream];
        let address = self.shape.address(head.place.segment, head.place.block);
        let header = Header {
            incarnation: head.place.incarnation,
            sequence: self.next_sequence,
            durable: self.durable,
            generation: self.generation,
            position: head.place.block,
            kind: Kind::Writes,
            payload_blocks: draft.payload_blocks,
            link: 0,
        };
        head.place.block += blocks;
        self.push(owner, address, Kind::Writes, draft.entries);
        self.account(blocks, effects);
        Ok(Placed { header, address, seal })
    }

    fn account(&mut self, blocks: u32, effects: &mut Effects) {
        self.since_checkpoint += u64::from(blocks);
        self.totals.appended_blocks += u64::from(blocks);
        if !self.changed {
            self.changed = true;
            effects.wake_maintenance = true;
        }
    }

    fn push(&mut self, owner: &Arc<QueueWaker>, address: Address, kind: Kind, entries: &[Entry]) {
        let mut kept = self.spare_entries();
        kept.clear();
        kept.extend_from_slice(entries);
        self.in_flight.push_back(InFlightRecord {
            owner: Arc::clone(owner),
            address,
            kind,
            entries: kept,
            written: false,
            given_up: false,
        });
        self.next_sequence = self.next_sequence.next();
    }

    /// Whether a record that has not committed says something about the block.
    pub fn is_in_flight(&self, lba: u64) -> bool {
        self.in_flight.iter().any(|record| {
            record.entries.iter().any(|entry| match *entry {
                Entry::Data { lba: at, .. } => at == lba,
                Entry::Trim { lba: start, count } => {
                    (start..start + u64::from(count)).contains(&lba)
                }
                _ => false,
            })
        })
    }

    /// Whether a record that has not committed says something about blocks in this range.
    pub fn is_any_in_flight(&self, blocks: Range<u64>) -> bool {
        let mut entries = self.in_flight.iter().flat_map(|record| &record.entries);
        entries.any(|entry| {
            let said = entry.blocks();
            said.start < blocks.end && blocks.start < said.end
        })
    }

    /// Makes sure that the stream's head has room for `blocks` blocks and, later, a seal.
    fn make_room(
        &mut self,
        draft: &Draft<'_>,
        blocks: u32,
        map: &BlockMap,
        owner: &Arc<QueueWaker>,
        effects: &mut Effects,
    ) -> Result<Option<Seal>, PlaceError> {
        let opener = draft.opener();
        let head = self.heads[draft.stream];
        if !head.has_space {
            return Err(self.refuse(opener, effects));
        }
        if head.place.block + blocks < self.shape.segment_blocks {
            let waits = !mutant("log.reserve.writes-fill-heads-of-trims");
            if head.for_trims && opener == Opener::Write && waits {
                // Taking it over counts as opening it.
                if !self.may_open_head(opener, map) {
                    return Err(self.refuse(opener, effects));
                }
                self.heads[draft.stream].for_trims = false;
            }
            return Ok(None);
        }
        if !self.may_open_head(opener, map) {
            return Err(self.refuse(opener, effects));
        }
        let for_trims = !self.may_open_head(Opener::Write, map);
        let Some((segment, incarnation)) = self.segments.open(draft.stream as u8) else {
            return Err(self.refuse(opener, effects));
        };
        // A ready segment has been used: the maintenance worker gets another.
        effects.wake_maintenance = true;
        let address = self.shape.address(head.place.segment, head.place.block);
        let seal = Seal {
            header: Header {
                incarnation: head.place.incarnation,
                sequence: self.next_sequence,
                durable: self.durable,
                generation: self.generation,
                position: head.place.block,
                kind: Kind::Seal,
                payload_blocks: 0,
                link: segment.get().into(),
            },
            address,
            next_incarnation: incarnation,
        };
        self.push(owner, address, Kind::Seal, &[Entry::Next { incarnation }]);
        self.account(1, effects);
        let place = HeadPlace { incarnation, segment, block: 0 };
        self.heads[draft.stream] = Head { place, has_space: true, for_trims };
        Ok(Some(seal))
    }

    fn refuse(&mut self, opener: Opener, effects: &mut Effects) -> PlaceError {
        effects.wake_maintenance = true;
        let want = self.want(opener);
        match want.full.filter(|full| full.is_fresh()) {
            Some(full) => PlaceError::Full(full.errno),
            None => {
                want.starved = true;
                PlaceError::Wait
            }
        }
    }

    /// A record is in the file, or could not be written; commits what can be.
    pub fn written(
        &mut self,
        sequence: Sequence,
        succeeded: bool,
        map: &BlockMap,
        effects: &mut Effects,
    ) {
        let index = sequence.index_from(self.committed);
        let record = &mut self.in_flight[index];
        record.written = true;
        if !succeeded && !mutant("log.commit.passes-over-failed-record") {
            self.health = match self.health {
                Health::Running => Health::Restarting,
                other => other,
            };
            effects.wake_maintenance = true;
            // The owners of records behind it must stop waiting.
            effects.wake.extend(self.in_flight.iter().map(|record| Arc::clone(&record.owner)));
        }
        if self.health != Health::Running {
            return;
        }
        let dead = self.segments.dead().0;
        while self
            .in_flight
            .front()
            .is_some_and(|record| record.written || mutant("log.commit.out-of-order"))
        {
            let Some(record) = self.in_flight.pop_front() else { break };
            self.apply(&record, map);
            self.committed = self.committed.next();
            self.spare_entries.push(record.entries);
            effects.wake.push(record.owner);
            effects.wake.append(&mut self.watchers);
        }
        // The maintenance worker sleeps longer when nothing is dead.
        effects.wake_maintenance |= dead == 0 && self.segments.dead().0 > 0;
    }

    fn apply(&mut self, record: &InFlightRecord, map: &BlockMap) {
        let segment = self.shape.segment_of(record.address);
        match record.kind {
            Kind::Seal => self.segments.seal(segment, self.clock),
            Kind::Writes => {
                // Before the losses: a record that writes a block twice loses one of its own.
                let blocks = record.entries.iter().map(|entry| entry.payload_blocks()).sum();
                self.segments.gain(segment, blocks);
                self.clock += u64::from(blocks);
                apply_entries(&record.entries, record.address, map, |old| {
                    self.segments.lose(old.address());
                });
            }
            Kind::Relocated | Kind::Map => {}
        }
    }

    /// After a failure: the owner of a record knows that it has not committed.
    pub fn give_up(&mut self, sequence: Sequence) {
        let index = sequence.index_from(self.committed);
        self.in_flight[index].given_up = true;
    }

    /// After a failure: whether every record on its way has been given up by its owner.
    pub fn all_given_up(&self) -> bool {
        self.in_flight.iter().all(|record| record.given_up && record.written)
    }

    /// After a failure: forgets the records that did not commit; their numbers are not used again.
    pub fn forget(&mut self) {
        for record in self.in_flight.drain(..) {
            if record.kind == Kind::Seal {
                // The head has left this segment all the same.
                self.segments.seal(self.shape.segment_of(record.address), self.clock);
            }
        }
        self.committed = self.next_sequence;
    }

    /// The heads as they were when everything before `committed` had been placed and nothing else.
    pub fn committed_heads(&self) -> [HeadPlace; STREAMS_MAX] {
        let mut heads = self.heads.map(|head| head.place);
        // Backwards, so that the earliest record of each stream is applied last.
        for record in self.in_flight.iter().rev() {
            let segment = self.shape.segment_of(record.address);
            let block = record.address.get() % self.shape.segment_blocks;
            let incarnation = self.segments.get(segment).incarnation;
            let stream = usize::from(self.segments.get(segment).lifetime);
            heads[stream] = HeadPlace { incarnation, segment, block };
        }
        heads
    }
}

/// Puts the entries of a record at `address` into the map. `died` is called with every map entry
/// that was replaced or removed.
pub fn apply_entries(
    entries: &[Entry],
    address: Address,
    map: &BlockMap,
    mut died: impl FnMut(MapEntry),
) {
    let mut payload = 0;
    for entry in entries {
        match *entry {
            Entry::Data { lba, checksum } => {
                let map_entry = MapEntry::new(address.forward(1 + payload), checksum);
                let old = map.replace(lba, map_entry);
                if old.is_mapped() {
                    died(old);
                }
            }
            Entry::Trim { lba, count } => map.unmap(lba..lba + u64::from(count), &mut died),
            _ => {}
        }
        payload += entry.payload_blocks();
    }
}

#[cfg(test)]
mod tests;
