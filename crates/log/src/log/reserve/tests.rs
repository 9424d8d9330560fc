//! A model of everything that opens, fills and frees segments, without a file: the real state
//! (`AppendState`, `SegmentTable`, `BlockMap`) and the real decisions, and a maintenance worker
//! that moves map entries instead of blocks. It begins with segments filled in any way that the
//! reserves allow, takes random steps, and fails when a request is refused for lack of room: live
//! data never exceeds the disk's size.

use std::collections::BTreeMap;
use std::sync::Arc;

use fastrand::Rng;
use flowstone_block::{Reactor, SectorCount};
use flowstone_image::runtime::wakers::QueueWaker;
use flowstone_log_format::{
    Address, BLOCK_SECTORS, Entry, HeadPlace, Incarnation, LEAF_ON_DISK_BLOCKS, LIFETIME_CLEANED,
    LIFETIME_COLD, LIFETIME_MAP, LIFETIMES, MapEntry, STREAMS_MAX, SegmentId, Sequence,
};
use flowstone_log_store::segments::{Segment, SegmentTable, State};

use super::*;
use crate::log::append::{AppendState, Draft, Effects, Head, PlaceError};
use crate::volume::Volume;
use crate::volume::map::BlockMap;

/// Steps of the maintenance worker for one record, after which it is considered to loop.
const CIRCLE_STEPS: u32 = 2000;

#[derive(Clone, Copy)]
struct CopyStream {
    segment: SegmentId,
    block: u32,
}

struct Model {
    state: AppendState,
    volume: Volume,
    blocks: u64,
    waker: Arc<QueueWaker>,
    copy_streams: [Option<CopyStream>; LIFETIMES],
    leaves: BTreeMap<u32, Address>,
    root: Option<(Address, u32)>,
    random: Rng,
    /// Number of occurrences of each event.
    counts: BTreeMap<&'static str, u64>,
}

/// Error: no room.
struct NoRoom;

impl Model {
    /// A disk whose segments are filled at random, as far as the reserves allow.
    fn filled(seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        let shape = Shape {
            segment_blocks: [64, 64, 128, 256][random.usize(..4)],
            reserve_percent: random.u32(3..30),
            streams: random.u32(1..3),
        };
        let blocks = match random.u8(..4) {
            0 => random.u64(8..200),
            1 => random.u64(4000..20_000),
            _ => random.u64(200..4000),
        };
        let limit = shape.segments_for(blocks).unwrap();
        let state = AppendState::new(shape, SegmentTable::new(shape, limit, 1), Sequence::FIRST);
        let mut model = Self {
            state,
            volume: Volume::new(SectorCount::new(blocks * BLOCK_SECTORS), BlockMap::default()),
            blocks,
            waker: QueueWaker::new(&Reactor::new().unwrap()),
            copy_streams: [None; LIFETIMES],
            leaves: BTreeMap::new(),
            root: None,
            random,
            counts: BTreeMap::new(),
        };
        model.fill();
        model.start();
        model
    }

    fn fill(&mut self) {
        let shape = self.state.shape();
        let mut lbas: Vec<u64> = (0..self.blocks).collect();
        self.random.shuffle(&mut lbas);
        lbas.truncate(self.random.usize(..=lbas.len()));
        let packed = shape.data_blocks_packed();
        let full = packed - shape.cleaning_gain_min();
        let heads = shape.streams;
        let mut number = 1;
        while !lbas.is_empty() {
            let available = self.state.segments().limit() - number;
            let spare = available.saturating_sub(self.kept() + heads);
            let count = match self.random.u8(..5) {
                // No room for waste.
                _ if spare * full < lbas.len() as u32 + full => packed,
                0 => 1,
                1 => full - 1,
                2 => full,
                3 => packed,
                _ => self.random.u32(1..=packed),
            };
            if available <= self.kept() + heads {
                // This data does not fit beside the reserve; the guest writes it itself.
                break;
            }
            let taken = lbas.split_off(lbas.len().saturating_sub(count as usize));
            let lifetime = self.random.u8(..=LIFETIME_COLD);
            let live = taken.len() as u32;
            let pinned = self.random.bool();
            let state = State::Sealed;
            let segment = Segment {
                state,
                lifetime,
                incarnation: Incarnation::new(0, 1),
                live,
                pinned,
                ..Segment::default()
            };
            self.state.segments_mut().set(SegmentId::new(number), segment);
            for (block, lba) in (1..).zip(taken) {
                self.volume
                    .map
                    .replace(lba, MapEntry::new(shape.address(SegmentId::new(number), block), 1));
            }
            number += 1;
        }
        self.state.segments_mut().rebuild_lists();
    }

    fn kept(&self) -> u32 {
        self.state.reserve(&self.volume, false).left_by(Opener::Write)
    }

    /// Opens heads, and makes a checkpoint.
    fn start(&mut self) {
        self.provide();
        self.restart().unwrap_or_else(|NoRoom| self.fail("no room to start"));
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    fn available(&self) -> u32 {
        self.state.segments().ready()
    }

    fn provide(&mut self) {
        while let Some(free) = self.state.segments_mut().take_free() {
            self.state.segments_mut().make_ready(free);
        }
    }

    fn reserve(&self) -> Reserve {
        self.state.reserve(&self.volume, true)
    }

    // Guests.

    fn place(&mut self, entries: &[Entry], stream: usize) -> Result<(), NoRoom> {
        let payload_blocks = entries.iter().map(|entry| entry.payload_blocks()).sum();
        let only_trims = payload_blocks == 0;
        let draft = Draft { stream, entries, payload_blocks, expected: &[], only_trims };
        for _ in 0..CIRCLE_STEPS {
            let mut effects = Effects::default();
            let owner = Arc::clone(&self.waker);
            match self.state.place(&draft, &self.volume, &owner, &mut effects) {
                Ok(placed) => {
                    let seal = placed.seal.map(|(seal, _)| seal.header.sequence);
                    for sequence in seal.into_iter().chain([placed.record.header.sequence]) {
                        self.state.written(sequence, true, &self.volume.map, &mut effects);
                    }
                    return Ok(());
                }
                Err(PlaceError::Wait) => self.step()?,
                Err(_) => return Err(NoRoom),
            }
        }
        self.fail("maintenance makes no progress");
    }

    fn write(&mut self) -> Result<(), NoRoom> {
        let most = u64::from(self.state.shape().record_payload_max()).min(self.blocks);
        let count = if self.random.u8(..4) == 0 { self.random.u64(1..=most) } else { 1 };
        let first = self.random.u64(..=self.blocks - count);
        let data = |lba| Entry::Data { lba, checksum: 1 };
        let entries: Vec<Entry> = (first..first + count).map(data).collect();
        let stream = self.random.usize(..self.state.shape().streams as usize);
        self.place(&entries, stream)
    }

    fn trim(&mut self, most: u64) -> Result<(), NoRoom> {
        let count = self.random.u64(1..=most.min(self.blocks));
        let lba = self.random.u64(..=self.blocks - count);
        let stream = self.random.usize(..self.state.shape().streams as usize);
        self.place(&[Entry::Trim { lba, count: count as u32 }], stream)
    }

    // Maintenance worker.

    fn step(&mut self) -> Result<(), NoRoom> {
        let (dead, freeable) = self.state.segments().dead();
        let view = View {
            reserve: self.reserve(),
            available: self.available(),
            trim_heads: self.state.trim_heads(),
            dead,
            freeable,
            map_segments: self.state.segments().used_for_maps(),
            segment_blocks: self.state.shape().segment_blocks,
            told_from: told_from(self.state.segments().limit(), self.blocks.is_multiple_of(2)),
        };
        let done = match view.next_step() {
            Step::Nothing => return Err(NoRoom),
            Step::SyncAndFree => {
                let freeable = self.state.segments_mut().take_freeable().in_order();
                self.release(freeable);
                Ok(())
            }
            Step::Checkpoint => self.checkpoint(),
            Step::CleanMap => self.clean_map().or_else(|_| self.clean_any()),
            Step::Clean => self.clean_any(),
        };
        match done {
            Ok(()) => Ok(()),
            Err(NoRoom) if self.state.segments().dead().0 > 0 => self.checkpoint(),
            Err(NoRoom) => Err(NoRoom),
        }
    }

    fn is_tight(&self) -> bool {
        self.available() + self.state.trim_heads() <= self.reserve().left_by(Opener::Copy) + 1
    }

    fn clean_any(&mut self) -> Result<(), NoRoom> {
        self.count("cleaned");
        let done = match self.victim() {
            Some(victim) => {
                let mut lifetime = self.random.u8(LIFETIME_CLEANED..=LIFETIME_COLD);
                if self.is_tight() {
                    lifetime = self.merge(lifetime);
                }
                self.clean(lifetime, victim)
            }
            None => {
                let lifetime = self.merge(LIFETIME_CLEANED);
                self.victim().ok_or(NoRoom).and_then(|victim| self.clean(lifetime, victim))
            }
        };
        match done {
            Err(NoRoom) => self.clean_map(),
            done => done,
        }
    }

    fn is_worth_cleaning(&self, segment: &Segment) -> bool {
        let shape = self.state.shape();
        segment.state == State::Sealed
            && segment.live + shape.cleaning_gain_min()
                < match segment.lifetime {
                    LIFETIME_MAP => shape.data_blocks_packed(),
                    _ => shape.data_blocks_most(),
                }
    }

    /// Chooses any victim: the argument must not depend on a good choice.
    fn victim(&mut self) -> Option<SegmentId> {
        let worth =
            |(number, it): (SegmentId, Segment)| self.is_worth_cleaning(&it).then_some(number);
        let all: Vec<SegmentId> = self.state.segments().iter().filter_map(worth).collect();
        self.random.choice(all)
    }

    fn merge(&mut self, lifetime: u8) -> u8 {
        let room =
            |lifetime: &u8| self.copy_streams[usize::from(*lifetime)].map(|it| u32::MAX - it.block);
        let open = (LIFETIME_CLEANED..=LIFETIME_COLD).filter(|lifetime| room(lifetime).is_some());
        let Some(roomiest) = open.max_by_key(room) else { return lifetime };
        for other in (LIFETIME_CLEANED..=LIFETIME_COLD).filter(|other| *other != roomiest) {
            self.seal_copy_stream(other);
        }
        roomiest
    }

    fn seal_copy_stream(&mut self, lifetime: u8) {
        if let Some(copy_stream) = self.copy_streams[usize::from(lifetime)].take() {
            self.state.segments_mut().seal(copy_stream.segment, 0);
        }
    }

    fn clean(&mut self, lifetime: u8, victim: SegmentId) -> Result<(), NoRoom> {
        if self.state.segments().get(victim).lifetime == LIFETIME_MAP {
            self.touch_leaves_in(victim);
            return self.checkpoint();
        }
        let shape = self.state.shape();
        let in_victim = |lba: &u64| {
            let map_entry = self.volume.map.get(*lba);
            map_entry.is_mapped() && shape.segment_of(map_entry.address()) == victim
        };
        let live: Vec<u64> = (0..self.blocks).filter(in_victim).collect();
        let mut rest = &*live;
        while !rest.is_empty() {
            let most = self.copies_that_fit(lifetime).min(rest.len());
            let (record, others) = rest.split_at(most);
            rest = others;
            let first = self.append(lifetime, record.len() as u32)?;
            self.state.segments_mut().gain(shape.segment_of(first), record.len() as u32);
            for (block, lba) in (0..).zip(record) {
                let old = self.volume.map.get(*lba);
                self.volume.map.replace(*lba, MapEntry::new(first.forward(block), 1));
                self.state.segments_mut().lose(old.address());
            }
            if self.random.bool() {
                // Like copies in a stream that no superblock names.
                self.state.segments_mut().pin(victim);
            }
        }
        Ok(())
    }

    /// Returns the rest of the open segment, or a full record in another.
    fn copies_that_fit(&self, lifetime: u8) -> usize {
        let shape = self.state.shape();
        let room = self.copy_streams[usize::from(lifetime)]
            .map_or(0, |it| (shape.segment_blocks - 1 - it.block).saturating_sub(1));
        let full = shape.record_payload_max();
        if room < 4 { full as usize } else { room.min(full) as usize }
    }

    /// Appends a record of `payload` blocks; returns the address of the first.
    fn append(&mut self, lifetime: u8, payload: u32) -> Result<Address, NoRoom> {
        let shape = self.state.shape();
        let old = self.copy_streams[usize::from(lifetime)];
        let fits = old.filter(|it| shape.segment_blocks - 1 - it.block > payload);
        let mut copy_stream = match fits {
            Some(copy_stream) => copy_stream,
            None => {
                let opener = if lifetime == LIFETIME_MAP { Opener::Map } else { Opener::Copy };
                let reserve = self.state.reserve(&self.volume, old.is_some());
                if !reserve.may_open(opener, self.available(), self.state.trim_heads()) {
                    return Err(NoRoom);
                }
                let (segment, _) = self.state.segments_mut().open(lifetime).ok_or(NoRoom)?;
                self.seal_copy_stream(lifetime);
                CopyStream { segment, block: 0 }
            }
        };
        let first = shape.address(copy_stream.segment, copy_stream.block + 1);
        copy_stream.block += 1 + payload;
        self.copy_streams[usize::from(lifetime)] = Some(copy_stream);
        Ok(first)
    }

    fn touch_leaves_in(&mut self, segment: SegmentId) {
        let shape = self.state.shape();
        let inside = self.leaves.iter().filter(|(_, at)| shape.segment_of(**at) == segment);
        inside.for_each(|(leaf, _)| self.volume.map.touch(*leaf));
    }

    fn clean_map(&mut self) -> Result<(), NoRoom> {
        self.count("map cleaned");
        let before = self.state.segments().used_for_maps();
        for _ in 0..3 {
            if !self.touch_sparse() {
                break;
            }
            self.checkpoint()?;
            let freeable = self.state.segments_mut().take_freeable().in_order();
            self.release(freeable);
            if self.state.segments().used_for_maps() < before {
                return Ok(());
            }
        }
        Err(NoRoom)
    }

    fn touch_sparse(&mut self) -> bool {
        let of_map = |it: &Segment| it.lifetime == LIFETIME_MAP && self.is_worth_cleaning(it);
        let sparse = self.state.segments().iter().filter(|(_, it)| of_map(it));
        let mut sparse: Vec<(u32, SegmentId)> =
            sparse.map(|(number, it)| (it.live, number)).collect();
        sparse.sort_unstable();
        let most = self.reserve().leaves;
        let mut any = false;
        for (_, victim) in sparse {
            self.touch_leaves_in(victim);
            any = true;
            if u64::from(self.volume.map.changed_count()) >= most {
                break;
            }
        }
        any
    }

    fn checkpoint(&mut self) -> Result<(), NoRoom> {
        self.count("checkpoints");
        let closed = self.state.segments_mut().take_pinned();
        let dead = self.state.segments_mut().take_dead().in_order();
        let changed = self.volume.map.take_changed(self.blocks);
        let mut outdated = Vec::new();
        let per_record =
            (self.state.shape().record_payload_max() / LEAF_ON_DISK_BLOCKS).max(1) as usize;
        for record in changed.chunks(per_record) {
            let payload = record.len() as u32 * LEAF_ON_DISK_BLOCKS;
            let Ok(mut at) = self.append(LIFETIME_MAP, payload) else {
                self.fail("no room for a checkpoint");
            };
            let segment = self.state.shape().segment_of(at);
            self.state.segments_mut().gain(segment, payload);
            for leaf in record {
                let old = self.leaves.insert(*leaf, at);
                outdated.extend(old.map(|old| (old, LEAF_ON_DISK_BLOCKS)));
                at = at.forward(LEAF_ON_DISK_BLOCKS);
            }
        }
        let used = u64::from(self.state.segments().used()) + 1;
        let blocks = flowstone_log_format::root_blocks(self.leaves.len() as u64, used) as u32;
        let Ok(root) = self.append(LIFETIME_MAP, blocks) else {
            self.fail("no room for a root");
        };
        let segment = self.state.shape().segment_of(root);
        self.state.segments_mut().gain(segment, blocks);
        outdated.extend(self.root.replace((root, blocks)));
        self.state.segments_mut().unpin(&closed);
        for (at, blocks) in outdated {
            let segment = self.state.shape().segment_of(at);
            self.state.segments_mut().lose_many(segment, blocks);
        }
        self.release(dead);
        Ok(())
    }

    fn release(&mut self, dead: Vec<SegmentId>) {
        let keep = self.random.u32(..9);
        let free = self.state.segments_mut().release_dead(&dead, keep);
        self.state.segments_mut().add_free(free);
        self.provide();
    }

    /// Restarts after a failed record or a crash: heads end, and new ones take their place.
    fn restart(&mut self) -> Result<(), NoRoom> {
        self.count("restarts");
        let freeable = self.state.segments_mut().take_freeable().in_order();
        self.release(freeable);
        self.state.end_heads([false; STREAMS_MAX]);
        for stream in 0..self.state.shape().streams as u8 {
            let heads = self.state.trim_heads();
            let for_trims = !self.reserve().may_open(Opener::Write, self.available(), heads);
            let (segment, incarnation) = self.state.segments_mut().open(stream).ok_or(NoRoom)?;
            let place = HeadPlace { incarnation, segment, block: 0 };
            self.state.set_head(stream, Head { place, has_space: true, for_trims });
        }
        if self.state.segments().used_for_maps() > self.reserve().map_full {
            self.touch_sparse();
        }
        self.checkpoint()
    }

    /// Closes and reopens the image, or kills its daemon.
    fn reopen(&mut self, crashed: bool) -> Result<(), NoRoom> {
        (0..LIFETIMES as u8).for_each(|lifetime| self.seal_copy_stream(lifetime));
        if crashed {
            return self.restart();
        }
        self.checkpoint()?;
        (0..LIFETIMES as u8).for_each(|lifetime| self.seal_copy_stream(lifetime));
        self.state.find_trim_heads(&self.volume);
        Ok(())
    }

    fn fail(&self, why: &str) -> ! {
        let state = |(number, it): (SegmentId, Segment)| {
            format!("{number}:{:?}/{}/{}", it.state, it.lifetime, it.live)
        };
        let segments: Vec<String> = self
            .state
            .segments()
            .iter()
            .filter(|it| it.1.state != State::Free)
            .map(state)
            .collect();
        panic!(
            "{why}: {:?}, {} of {} blocks live, {} available, {} trim heads, {:?}, {:?}, {segments:?}",
            self.state.shape(),
            self.volume.map.mapped(),
            self.blocks,
            self.available(),
            self.state.trim_heads(),
            self.reserve(),
            self.counts,
        );
    }

    /// Takes `rounds` random steps.
    fn run(&mut self, rounds: u32) {
        let (mut trims, mut longest, mut breaks) = (10, 1, 200);
        for round in 0..rounds {
            if round % 300 == 0 {
                trims = [0, 1, 8, 15, 50, 100][self.random.usize(..6)];
                longest = if self.random.bool() { 1 } else { self.random.u64(1..64) };
                breaks = [0, 2, 30][self.random.usize(..3)];
            }
            let done = if self.random.u32(..1000) < breaks {
                match self.random.u8(..4) {
                    0 => self.restart(),
                    1 => self.checkpoint(),
                    2 => self.reopen(false),
                    _ => self.reopen(true),
                }
            } else if self.random.u32(..100) < trims {
                self.trim(longest)
            } else {
                self.write()
            };
            if done.is_err() {
                self.fail("no room, and the disk is not full");
            }
        }
    }
}

const RESERVE: Reserve = Reserve { checkpoints: 3, trims: 2, cleaning: 2, map_full: 1, leaves: 10 };

/// A view with `left` segments beyond those that writes must leave.
fn view(left: u32, dead: u32, freeable: u32) -> View {
    let available = RESERVE.left_by(Opener::Write) + left;
    let (trim_heads, map_segments, segment_blocks) = (0, 1, 1024);
    View {
        reserve: RESERVE,
        available,
        trim_heads,
        dead,
        freeable,
        map_segments,
        segment_blocks,
        told_from: None,
    }
}

#[test]
fn what_a_sync_frees_is_freed_together_and_counts_as_room() {
    assert_eq!(view(SLACK_SEGMENTS, 9, 9).next_step(), Step::Nothing);
    assert_eq!(view(2, 3, 3).next_step(), Step::SyncAndFree);
    assert_eq!(view(3, 1, 1).next_step(), Step::Nothing);
    assert_eq!(view(2, 1, 1).next_step(), Step::Clean);
    assert_eq!(view(1, 1, 1).next_step(), Step::SyncAndFree);
    assert_eq!(View { segment_blocks: 8192, ..view(3, 1, 1) }.next_step(), Step::SyncAndFree);
    assert_eq!(view(1, 1, 0).next_step(), Step::Clean);
    assert_eq!(view(0, 1, 0).next_step(), Step::Checkpoint);
}

#[test]
fn a_drive_is_told_of_a_hundredth_of_the_image_although_there_is_room() {
    let told = |freeable| {
        let told_from = told_from(640, true);
        View { told_from, ..view(SLACK_SEGMENTS, 30, freeable) }.next_step()
    };
    assert_eq!((told(6), told(7)), (Step::Nothing, Step::SyncAndFree));
    assert_eq!((told_from(63, true), told_from(640, false)), (None, None));
}

#[test]
fn a_checkpoint_is_made_for_dead_segments_where_that_is_cheaper_than_cleaning() {
    // A victim with half of it live costs one copied block per freed block.
    assert!(view(2, 4, 0).checkpoint_is_cheaper(2000, Some(512)));
    assert!(!view(2, 4, 0).checkpoint_is_cheaper(2100, Some(512)));
    assert!(view(2, 5, 0).checkpoint_is_cheaper(2100, Some(512)));
    assert!(!view(2, 4, 0).checkpoint_is_cheaper(2000, Some(100)));
    assert!(!view(2, 2, 0).checkpoint_is_cheaper(0, Some(512)), "two are not worth the syncs");
    assert!(view(2, 1, 0).checkpoint_is_cheaper(5000, None));
}

fn runs(seeds: std::ops::Range<u64>, rounds: u32) {
    for seed in seeds {
        let _tell = crate::tests::Tell(format!("seed {seed}"));
        Model::filled(seed).run(rounds);
    }
}

#[test]
fn no_fill_of_segments_and_no_sequence_ends_without_room_on_a_disk_that_is_not_full() {
    runs(0..300, 1500);
}

#[test]
#[ignore = "runs for SOAK_MINUTES: make soak"]
fn soak_reserves() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let minutes = number("SOAK_MINUTES").unwrap_or(10);
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60 * minutes);
    let first = number("SOAK_SEED").unwrap_or_else(|| fastrand::u64(..1 << 32));
    eprintln!("SOAK_SEED={first}");
    let mut seed = first;
    while std::time::Instant::now() < end {
        runs(seed..seed + 50, 4000);
        seed += 50;
    }
    eprintln!("SOAK_SEED={first}: {} fills of segments", seed - first);
}
