//! The end of the log: where the next record goes, which are on their way, and what commits.
//!
//! Everything here happens under the log's one lock, which is held for moments: to place a record,
//! and to apply a committed one to the map. Data is copied, summed and written outside it.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use flowstone_block::Errno;

use super::address::{Address, Word};
use super::map::BlockMap;
use super::record::{Entry, Header, Kind};
use super::segments::SegmentTable;
use super::shape::{self, Shape};
use super::superblock::{HeadPlace, Totals};
use crate::waker::Waker;

/// Streams of guest data.
pub const STREAMS_MAX: usize = 2;

/// The place where a stream is appended to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Head {
    pub place: HeadPlace,
    /// Whether the host has given the segment space.
    pub has_space: bool,
}

/// Whether records can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    Running,
    /// A record could not be written: nothing is made until the keeper has started new heads.
    Restarting,
    /// The new heads could not be started either: nothing is written until the image is reopened.
    Stopped,
}

/// A record to be placed.
pub struct Draft<'a> {
    pub stream: usize,
    pub entries: &'a [Entry],
    pub payload_blocks: u32,
    /// Blocks of which only a part is new, and the words that the rest was read with.
    pub bases: &'a [(u64, Word)],
    /// Whether it only gives space up: that may use the last segments.
    pub only_trims: bool,
}

/// Why a record has no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Not now: the keeper will wake whoever waits.
    Wait,
    /// The rest of this block has changed, or is about to.
    Stale {
        lba: u64,
        /// What had committed, if the block is on its way in a record that has not.
        on_its_way: Option<u64>,
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
    pub next_serial: u64,
}

struct OnItsWay {
    owner: Arc<Waker>,
    address: Address,
    kind: Kind,
    entries: Vec<Entry>,
    written: bool,
    /// After a failure: the owner knows that this record will not commit.
    settled: bool,
}

/// See the module.
pub struct Tail {
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
    pub durable: u64,
    /// Blocks appended since the last checkpoint.
    pub since_checkpoint: u64,
    /// Why writes cannot go on, while they cannot.
    pub full: Option<Errno>,
    /// Whether somebody waits for the keeper to make room.
    pub starved: bool,
    /// Whether anything has changed since the last checkpoint.
    pub changed: bool,
    /// Leaves that a full map of the disk has.
    pub disk_leaves: u64,
    next_sequence: u64,
    committed: u64,
    on_their_way: VecDeque<OnItsWay>,
    spare_entries: Vec<Vec<Entry>>,
    /// Queues that wait for a block which is on its way.
    watchers: Vec<Arc<Waker>>,
}

/// What a step of the log means for others.
#[derive(Default)]
pub struct News {
    /// Owners whose records have committed or failed.
    pub wake: Vec<Arc<Waker>>,
    /// The keeper should look around.
    pub call_keeper: bool,
}

impl Tail {
    pub fn new(shape: Shape, segments: SegmentTable, next_sequence: u64) -> Self {
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
            full: None,
            starved: false,
            changed: false,
            disk_leaves: 0,
            next_sequence,
            committed: next_sequence,
            on_their_way: VecDeque::new(),
            spare_entries: Vec::new(),
            watchers: Vec::new(),
        }
    }

    /// Everything before this sequence number has committed.
    pub fn committed(&self) -> u64 {
        self.committed
    }

    /// The sequence number that the next record gets.
    pub fn next_sequence(&self) -> u64 {
        self.next_sequence
    }

    /// An empty list of entries, used before.
    pub fn spare_entries(&mut self) -> Vec<Entry> {
        self.spare_entries.pop().unwrap_or_default()
    }

    /// Segments that only a checkpoint may take: without them neither the dead could be freed nor
    /// an image be opened after a crash.
    pub fn kept_for_checkpoints(&self, map: &BlockMap) -> u32 {
        // Until the open segments are full, each of their blocks may change another leaf.
        let open = u64::from(self.segments.open_for_data()) * u64::from(self.shape.segment_blocks);
        let on_their_way: usize = self.on_their_way.iter().map(|it| it.entries.len()).sum();
        let coming = open + on_their_way as u64;
        let leaves = (u64::from(map.changed_count()) + coming).min(self.disk_leaves);
        let leaves_most = (u64::from(map.leaf_count()) + coming).min(self.disk_leaves);
        let root = shape::root_blocks(leaves_most, u64::from(self.segments.used()) + 1);
        self.shape.streams + 1 + self.shape.checkpoint_segments(leaves, root) as u32
    }

    /// Segments that cleaning may not take either: what gives space up must always have a place.
    pub fn kept_for_trims(&self, map: &BlockMap) -> u32 {
        self.kept_for_checkpoints(map) + 1
    }

    /// Segments that guests may not take: cleaning needs a few more.
    pub fn kept_for_upkeep(&self, map: &BlockMap) -> u32 {
        self.kept_for_trims(map) + 2
    }

    /// Gives a draft the next place and sequence number. `entries` goes along until the commit. The
    /// disk has so many blocks: what is beyond them must not get into the log.
    pub fn place(
        &mut self,
        draft: &Draft<'_>,
        map: &BlockMap,
        blocks: u64,
        owner: &Arc<Waker>,
        news: &mut News,
    ) -> Result<Placed, Refusal> {
        match self.health {
            Health::Running => {}
            Health::Restarting => return Err(Refusal::Wait),
            Health::Stopped => return Err(Refusal::Full(Errno::IO)),
        }
        if let Some(entry) = draft.entries.iter().find(|entry| entry.blocks().end > blocks) {
            return Err(Refusal::Stale { lba: entry.blocks().start, on_its_way: None });
        }
        for &(lba, word) in draft.bases {
            if self.is_on_its_way(lba) {
                self.watchers.push(Arc::clone(owner));
                return Err(Refusal::Stale { lba, on_its_way: Some(self.committed) });
            }
            if map.get(lba) != word {
                return Err(Refusal::Stale { lba, on_its_way: None });
            }
        }
        let blocks = 1 + draft.payload_blocks;
        let seal = self.make_room(draft, blocks, map, owner, news)?;
        let head = &mut self.heads[draft.stream];
        let address = self.shape.address(head.place.segment, head.place.block);
        let header = Header {
            serial: head.place.serial,
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
        self.account(blocks, news);
        Ok(Placed { header, address, seal })
    }

    fn account(&mut self, blocks: u32, news: &mut News) {
        self.since_checkpoint += u64::from(blocks);
        self.totals.appended_blocks += u64::from(blocks);
        if !self.changed {
            self.changed = true;
            news.call_keeper = true;
        }
    }

    fn push(&mut self, owner: &Arc<Waker>, address: Address, kind: Kind, entries: &[Entry]) {
        let mut kept = self.spare_entries();
        kept.clear();
        kept.extend_from_slice(entries);
        self.on_their_way.push_back(OnItsWay {
            owner: Arc::clone(owner),
            address,
            kind,
            entries: kept,
            written: false,
            settled: false,
        });
        self.next_sequence += 1;
    }

    /// Whether a record that has not committed says something about the block.
    pub fn is_on_its_way(&self, lba: u64) -> bool {
        self.on_their_way.iter().any(|record| {
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
    pub fn is_any_on_its_way(&self, blocks: Range<u64>) -> bool {
        let mut entries = self.on_their_way.iter().flat_map(|record| &record.entries);
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
        owner: &Arc<Waker>,
        news: &mut News,
    ) -> Result<Option<Seal>, Refusal> {
        let head = self.heads[draft.stream];
        if !head.has_space {
            return Err(self.refuse(news));
        }
        if head.place.block + blocks < self.shape.segment_blocks {
            return Ok(None);
        }
        let keep = match draft.only_trims {
            true => self.kept_for_checkpoints(map),
            false => self.kept_for_upkeep(map),
        };
        if self.segments.ready() <= keep {
            return Err(self.refuse(news));
        }
        let Some((segment, serial)) = self.segments.open(draft.stream as u8) else {
            return Err(self.refuse(news));
        };
        // One of those that wait in reserve has gone: the keeper gets another.
        news.call_keeper = true;
        let address = self.shape.address(head.place.segment, head.place.block);
        let seal = Seal {
            header: Header {
                serial: head.place.serial,
                sequence: self.next_sequence,
                durable: self.durable,
                generation: self.generation,
                position: head.place.block,
                kind: Kind::Seal,
                payload_blocks: 0,
                link: u64::from(segment),
            },
            address,
            next_serial: serial,
        };
        self.push(owner, address, Kind::Seal, &[Entry::Next { serial }]);
        self.account(1, news);
        let place = HeadPlace { serial, segment, block: 0 };
        self.heads[draft.stream] = Head { place, has_space: true };
        Ok(Some(seal))
    }

    fn refuse(&mut self, news: &mut News) -> Refusal {
        news.call_keeper = true;
        match self.full {
            Some(errno) => Refusal::Full(errno),
            None => {
                self.starved = true;
                Refusal::Wait
            }
        }
    }

    /// A record is in the file, or could not be written; commits what can be.
    pub fn written(&mut self, sequence: u64, succeeded: bool, map: &BlockMap, news: &mut News) {
        let index = (sequence - self.committed) as usize;
        let record = &mut self.on_their_way[index];
        record.written = true;
        if !succeeded {
            self.health = match self.health {
                Health::Running => Health::Restarting,
                other => other,
            };
            news.call_keeper = true;
            // Whoever waits behind it must hear that waiting is over.
            news.wake.extend(self.on_their_way.iter().map(|record| Arc::clone(&record.owner)));
        }
        if self.health != Health::Running {
            return;
        }
        let dead = self.segments.dead().0;
        while self.on_their_way.front().is_some_and(|record| record.written) {
            let Some(record) = self.on_their_way.pop_front() else { break };
            self.apply(&record, map);
            self.committed += 1;
            self.spare_entries.push(record.entries);
            news.wake.push(record.owner);
            news.wake.append(&mut self.watchers);
        }
        // It sleeps longer when there is nothing to give back.
        news.call_keeper |= dead == 0 && self.segments.dead().0 > 0;
    }

    fn apply(&mut self, record: &OnItsWay, map: &BlockMap) {
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
    pub fn settle(&mut self, sequence: u64) {
        let index = (sequence - self.committed) as usize;
        self.on_their_way[index].settled = true;
    }

    /// After a failure: whether every record on its way has been given up by its owner.
    pub fn all_settled(&self) -> bool {
        self.on_their_way.iter().all(|record| record.settled && record.written)
    }

    /// After a failure: forgets the records that did not commit; their numbers are not used again.
    pub fn forget(&mut self) {
        for record in self.on_their_way.drain(..) {
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
        // Backwards, so that the earliest record of each stream has the last word.
        for record in self.on_their_way.iter().rev() {
            let segment = self.shape.segment_of(record.address);
            let block = record.address.get() % self.shape.segment_blocks;
            let serial = self.segments.get(segment).serial;
            let stream = usize::from(self.segments.get(segment).class);
            heads[stream] = HeadPlace { serial, segment, block };
        }
        heads
    }
}

/// Puts the entries of a record at `address` into the map. `died` is told every word that was
/// replaced or removed.
pub fn apply_entries(
    entries: &[Entry],
    address: Address,
    map: &BlockMap,
    mut died: impl FnMut(Word),
) {
    let mut payload = 0;
    for entry in entries {
        match *entry {
            Entry::Data { lba, checksum } => {
                let word = Word::new(address.forward(1 + payload), checksum);
                let old = map.replace(lba, word);
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
