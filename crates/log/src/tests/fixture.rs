//! An image on a simulated disk with all its users on one thread: guests, their queues, and the
//! maintenance worker. The next event is drawn from a seed, so every run is repeatable.
//!
//! The maintenance worker works only when it has been woken, as its thread would, and guests go on
//! while it waits for I/O (see `scheduler`). When nothing advances any more although requests are
//! in flight, that is a hang, and the test fails.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use fastrand::Rng;
use flowstone_block::{
    Channel, Class, Completion, Errno, Extent, IoVec, Op, Outcome, QueueContext, QueueDepth,
    Request, Result, Sector, SectorCount,
};
use flowstone_fileio::FileIo;
use flowstone_image::Wait;
use flowstone_log_format::{Address, LIFETIME_MAP, LIFETIMES, SUPERBLOCK_AREA_BYTES, SegmentId};
use flowstone_log_store::segments::{Segment, State};
use flowstone_sim::{Moment, SimDisk};

use super::history_model::{HistoryModel, SECTOR, Stamp, read_stamps, stamp};
use super::scheduler::{scheduled, with_hook};
use crate::channel::LogChannel;
use crate::create::{LogOptions, create};
use crate::log::Log;
use crate::maintenance::{CheckpointKind, Maintenance, Progress};
use crate::session::load_for;
use crate::streams::Streams;
use crate::volume::Volume;

/// The smallest segment, so that little data fills many.
pub const SEGMENT_BYTES: u64 = 256 << 10;
pub const BLOCK_SECTORS: u64 = 8;
/// Turns without any progress after which a request counts as stuck.
const STUCK_TURNS: u32 = 60;
/// Steps of the maintenance worker without any other event, after which it is considered to loop.
const CIRCLE_STEPS: u32 = 400;

/// Load of the guests.
#[derive(Clone, Debug)]
pub struct Mix {
    /// Percentages of all changes that are not aligned to blocks, and that write zeroes.
    pub unaligned_percent: u32,
    pub zero_percent: u32,
    pub flush_percent: u32,
    pub read_percent: u32,
    pub durable_percent: u32,
    /// Blocks of the largest change.
    pub blocks_max: u64,
    /// Blocks that are changed.
    pub region: Range<u64>,
    /// Maximum number of requests in flight.
    pub depth: usize,
}

impl Mix {
    /// A mix of all requests, on the first `blocks` blocks.
    pub fn on(blocks: u64) -> Self {
        Self {
            unaligned_percent: 30,
            zero_percent: 15,
            flush_percent: 8,
            read_percent: 15,
            durable_percent: 5,
            blocks_max: 9,
            region: 0..blocks,
            depth: 8,
        }
    }

    /// Writes of whole blocks only.
    pub fn writes(region: Range<u64>) -> Self {
        Self {
            unaligned_percent: 0,
            zero_percent: 0,
            flush_percent: 1,
            read_percent: 0,
            durable_percent: 0,
            region,
            ..Self::on(0)
        }
    }
}

/// Parameters of an image and its use.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub blocks: u64,
    /// Sectors missing from the last block: the disk ends inside it.
    pub cut: u64,
    pub split: bool,
    pub queues: usize,
    pub segment_bytes: u64,
    pub reserve: Option<u32>,
}

impl Default for Setup {
    fn default() -> Self {
        let segment_bytes = SEGMENT_BYTES;
        Self { blocks: 256, cut: 0, split: false, queues: 2, segment_bytes, reserve: None }
    }
}

impl Setup {
    /// Streams of guest writes.
    pub const fn streams(self) -> Streams {
        if self.split { Streams::Class } else { Streams::One }
    }

    /// Sectors of the disk.
    pub fn sectors(self) -> u64 {
        self.blocks * BLOCK_SECTORS - self.cut
    }

    /// A simulated disk with an empty image, and without a history.
    pub fn image(self) -> SimDisk {
        let disk = SimDisk::new(SUPERBLOCK_AREA_BYTES);
        let options = LogOptions {
            segment_bytes: Some(self.segment_bytes),
            erase_unit_bytes: None,
            reserve_percent: self.reserve,
            streams: self.streams(),
        };
        create("image", &disk, SectorCount::new(self.sectors()), options).unwrap();
        without_history(&disk)
    }

    /// An empty image in use.
    pub fn fixture(self, seed: u64) -> Fixture {
        let model = HistoryModel::new(vec![0; self.sectors() as usize], 1);
        Fixture::open(&self.image(), self, model, seed).unwrap()
    }
}

/// The same disk, all of it durable.
pub fn without_history(disk: &SimDisk) -> SimDisk {
    SimDisk::from_bytes(&disk.to_bytes())
}

/// A request in flight.
struct Pending {
    purpose: Purpose,
    sectors: Range<u64>,
    buffer: Box<[u8]>,
}

enum Purpose {
    Change(usize),
    Flush(usize),
    /// With the oldest version of each sector that the read may return.
    Read(Vec<usize>),
}

/// A request that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    pub kind: flowstone_block::OpKind,
    pub errno: Errno,
}

/// The guests of an image, and their queues.
pub struct Guests {
    // Dropped first: queues wait for their own I/O, whose memory is below.
    queues: Vec<LogChannel>,
    pending: BTreeMap<u32, Pending>,
    done: Vec<Completion>,
    disk: SimDisk,
    pub model: HistoryModel,
    pub random: Rng,
    pub mix: Mix,
    /// Number of requests that guests will still make on their own.
    pub quota: u32,
    pub failures: Vec<Failure>,
    pub completions: u64,
    next_tag: u32,
}

impl Guests {
    /// Submits a change; `None` if it would overlap one in flight.
    pub fn change(
        &mut self,
        queue: usize,
        sectors: Range<u64>,
        zeroes: bool,
        shape: impl FnOnce(&mut Request),
    ) -> Option<u32> {
        let overlaps = |it: &Pending| {
            matches!(it.purpose, Purpose::Change(_))
                && it.sectors.start < sectors.end
                && sectors.start < it.sectors.end
        };
        if self.pending.values().any(overlaps) {
            return None;
        }
        Some(self.change_anyway(queue, sectors, zeroes, shape))
    }

    /// Submits a change even if it overlaps one in flight: then the model cannot predict the
    /// result.
    pub fn change_anyway(
        &mut self,
        queue: usize,
        sectors: Range<u64>,
        zeroes: bool,
        shape: impl FnOnce(&mut Request),
    ) -> u32 {
        let extent = extent(&sectors);
        let op = match zeroes {
            false => Op::Write(extent),
            true if self.random.bool() => Op::Discard(extent),
            true => Op::WriteZeroes { extent, unmap: self.random.bool() },
        };
        let mut request = Request::new(op, self.next_tag);
        shape(&mut request);
        let durable = request.durable;
        let change = self.model.begin(sectors.clone(), zeroes, durable, self.disk.now());
        let mut buffer = Vec::new();
        if !zeroes {
            buffer = vec![0; (sectors.end - sectors.start) as usize * SECTOR];
            stamp(&mut buffer, sectors.start, self.model.stamp_of(change));
        }
        self.submit(queue, request, Purpose::Change(change), sectors, buffer.into())
    }

    pub fn write(&mut self, queue: usize, sectors: Range<u64>) -> u32 {
        self.change(queue, sectors, false, |_| ()).expect("nothing overlaps")
    }

    pub fn zero(&mut self, queue: usize, sectors: Range<u64>) -> u32 {
        self.change(queue, sectors, true, |_| ()).expect("nothing overlaps")
    }

    pub fn flush(&mut self, queue: usize) -> u32 {
        let flush = self.model.begin_flush(self.disk.now());
        let request = Request::new(Op::Flush, self.next_tag);
        self.submit(queue, request, Purpose::Flush(flush), 0..0, Box::default())
    }

    pub fn read(&mut self, queue: usize, sectors: Range<u64>) -> u32 {
        let oldest = sectors.clone().map(|at| self.model.completed_version(at)).collect();
        let request = Request::new(Op::Read(extent(&sectors)), self.next_tag);
        let buffer = vec![0xaa; (sectors.end - sectors.start) as usize * SECTOR];
        self.submit(queue, request, Purpose::Read(oldest), sectors, buffer.into())
    }

    fn submit(
        &mut self,
        queue: usize,
        mut request: Box<Request>,
        purpose: Purpose,
        sectors: Range<u64>,
        mut buffer: Box<[u8]>,
    ) -> u32 {
        let tag = self.next_tag;
        self.next_tag += 1;
        if !buffer.is_empty() {
            // In two pieces, like guests.
            let cut = self.random.usize(..buffer.len());
            let (head, tail) = buffer.split_at_mut(cut);
            for piece in [head, tail].into_iter().filter(|piece| !piece.is_empty()) {
                // SAFETY: the buffer is kept in `pending` until the request comes back.
                request.memory.push(unsafe { IoVec::of(piece) });
            }
        }
        self.pending.insert(tag, Pending { purpose, sectors, buffer });
        self.queues[queue].submit(request);
        tag
    }

    pub fn in_flight(&self) -> usize {
        self.pending.len()
    }

    pub fn is_in_flight(&self, tag: u32) -> bool {
        self.pending.contains_key(&tag)
    }

    pub fn kick(&mut self, queue: usize) {
        self.queues[queue].kick();
    }

    /// Takes the completions of a queue, and returns whether there were any.
    pub fn reap(&mut self, queue: usize) -> bool {
        let mut done = std::mem::take(&mut self.done);
        self.queues[queue].reap(&mut done);
        let any = !done.is_empty();
        for completion in done.drain(..) {
            self.finish(completion);
        }
        self.done = done;
        any
    }

    /// Returns the states in which the requests of a queue wait.
    pub fn waits(&self, queue: usize) -> BTreeSet<Wait> {
        self.queues[queue].waits()
    }

    /// Does what a queue does before its thread sleeps.
    pub fn nap(&mut self, queue: usize) {
        self.queues[queue].next_look();
    }

    fn finish(&mut self, completion: Completion) {
        let Completion { request, outcome } = completion;
        let pending = self.pending.remove(&request.tag).expect("a request comes back once");
        self.completions += 1;
        if let Err(errno) = outcome {
            self.failures.push(Failure { kind: request.op.kind(), errno });
            return;
        }
        let now = self.disk.now();
        match pending.purpose {
            Purpose::Change(change) => self.model.end(change, now),
            Purpose::Flush(flush) => self.model.end_flush(flush, now),
            Purpose::Read(oldest) => {
                let start = pending.sectors.start;
                let seen = read_stamps(&pending.buffer, start).unwrap();
                for ((sector, oldest), seen) in (start..).zip(oldest).zip(seen) {
                    let fits = self.model.may_hold(sector, oldest, seen);
                    assert!(fits, "a read of sector {sector} found {seen}");
                }
            }
        }
    }

    /// Runs one random event.
    pub fn turn(&mut self) {
        let queue = self.random.usize(..self.queues.len());
        match self.random.u8(..8) {
            0..3 if self.quota > 0 && self.in_flight() < self.mix.depth => self.act(queue),
            0..4 => self.kick(queue),
            4 => self.nap(queue),
            _ => drop(self.reap(queue)),
        }
    }

    /// Submits a random request of a guest.
    fn act(&mut self, queue: usize) {
        let percent = |random: &mut Rng, share: u32| random.u32(..100) < share;
        self.quota -= 1;
        if percent(&mut self.random, self.mix.flush_percent) {
            self.flush(queue);
            return;
        }
        let sectors = self.any_sectors();
        if percent(&mut self.random, self.mix.read_percent) {
            self.read(queue, sectors);
            return;
        }
        let zeroes = percent(&mut self.random, self.mix.zero_percent);
        let durable = percent(&mut self.random, self.mix.durable_percent);
        let class = if self.random.bool() { Class::Metadata } else { Class::default() };
        self.change(queue, sectors, zeroes, |request| {
            request.durable = durable;
            request.class = class;
        });
    }

    fn any_sectors(&mut self) -> Range<u64> {
        let Range { start, end } = self.any_sectors_of_blocks();
        // The disk may end inside its last block.
        let last = self.model.sectors();
        start.min(last - 1)..end.min(last)
    }

    fn any_sectors_of_blocks(&mut self) -> Range<u64> {
        let random = &mut self.random;
        let Range { start, end } = self.mix.region;
        // Some blocks are used much more often than others.
        let hot = start..end.min(start + 6);
        let first = if random.u8(..3) == 0 { random.u64(hot) } else { random.u64(start..end) };
        if random.u32(..100) < self.mix.unaligned_percent {
            let from = first * BLOCK_SECTORS + random.u64(..BLOCK_SECTORS);
            let most = (end * BLOCK_SECTORS - from).min(20);
            return from..from + random.u64(1..=most);
        }
        let most = self.mix.blocks_max.min(end - first);
        let count = if random.u8(..3) == 0 { random.u64(1..=most) } else { 1 };
        first * BLOCK_SECTORS..(first + count) * BLOCK_SECTORS
    }
}

pub fn extent(sectors: &Range<u64>) -> Extent {
    Extent::new(Sector::new(sectors.start), SectorCount::new(sectors.end - sectors.start)).unwrap()
}

/// An image in use.
pub struct Fixture {
    pub guests: Rc<RefCell<Guests>>,
    pub maintenance: Maintenance,
    pub log: Arc<Log>,
    pub volume: Arc<Volume>,
    pub disk: SimDisk,
    pub setup: Setup,
    /// When it had been opened: its content at that moment was durable.
    pub opened: Moment,
    /// The maintenance worker has been woken, and has not run out of work yet.
    awake: bool,
}

impl Fixture {
    /// Opens for writing the image that `model` describes.
    pub fn open(disk: &SimDisk, setup: Setup, model: HistoryModel, seed: u64) -> Result<Self> {
        let file = Box::new(scheduled(disk));
        let (log, volume, maintenance) = begin(file, Some(setup.streams()))?;
        let queues = (0..setup.queues).map(|_| queue(&log, &volume, false)).collect();
        let guests = Guests {
            queues,
            pending: BTreeMap::new(),
            done: Vec::new(),
            disk: disk.clone(),
            model,
            random: Rng::with_seed(seed),
            mix: Mix::on(setup.blocks),
            quota: 0,
            failures: Vec::new(),
            completions: 0,
            next_tag: 0,
        };
        let guests = Rc::new(RefCell::new(guests));
        let opened = disk.now();
        Ok(Self {
            guests,
            maintenance,
            log,
            volume,
            disk: disk.clone(),
            setup,
            opened,
            awake: false,
        })
    }

    /// Returns the guests, to control them.
    pub fn guests(&self) -> std::cell::RefMut<'_, Guests> {
        self.guests.borrow_mut()
    }

    /// Runs work of the maintenance worker, while guests go on.
    pub fn maintenance<T>(&mut self, work: impl FnOnce(&mut Maintenance) -> T) -> T {
        let guests = Rc::clone(&self.guests);
        let hook = move || {
            let mut guests = guests.borrow_mut();
            for _ in 0..guests.random.u8(..4) {
                guests.turn();
            }
        };
        with_hook(hook, || work(&mut self.maintenance))
    }

    /// Runs one step of the maintenance worker, if it has been woken; returns whether it did
    /// anything.
    pub fn step(&mut self) -> bool {
        let pending_work = self.log.inbox.wait(Some(Instant::now()));
        self.awake |= pending_work.pass;
        if self.awake {
            self.maintenance(Maintenance::run_commands);
            self.awake = self.maintenance(Maintenance::step) == Progress::Made;
        }
        self.awake
    }

    /// As [`step`](Self::step), with no other requests meanwhile.
    pub fn step_alone(&mut self) {
        let pending_work = self.log.inbox.wait(Some(Instant::now()));
        self.awake = (self.awake || pending_work.pass) && self.maintenance.step() == Progress::Made;
    }

    /// Returns whether the address holds a block of another LBA.
    pub fn in_use_again(&self, place: Address) -> bool {
        (10..self.volume.blocks()).any(|lba| self.volume.map.get(lba).address() == place)
    }

    /// Lets guests make `requests` requests; returns when all have completed.
    pub fn run(&mut self, requests: u32) {
        self.guests().quota += requests;
        while self.guests().quota > 0 {
            self.guests().turn();
            if self.guests().random.u8(..6) == 0 {
                self.step();
            }
            let depth = self.guests().mix.depth;
            self.drain_below(depth);
        }
        self.drain();
    }

    /// Waits until nothing is in flight.
    ///
    /// # Panics
    /// If a request never completes.
    pub fn drain(&mut self) {
        self.drain_below(1);
    }

    /// Waits until fewer than `count` requests are in flight.
    pub fn drain_below(&mut self, count: usize) {
        let (mut idle, mut steps) = (0, 0);
        while self.guests().in_flight() >= count {
            let before = self.guests().completions;
            for queue in 0..self.setup.queues {
                let mut guests = self.guests();
                guests.kick(queue);
                guests.nap(queue);
                guests.reap(queue);
            }
            let stepped = self.step();
            let moved = self.guests().completions != before;
            idle = if moved || stepped { 0 } else { idle + 1 };
            steps = if stepped && !moved { steps + 1 } else { 0 };
            let health = self.log.append_state().health();
            assert!(idle < STUCK_TURNS, "a request hangs and maintenance sleeps ({health:?})");
            assert!(
                steps < CIRCLE_STEPS,
                "a request hangs and maintenance makes no progress: {}",
                self.describe()
            );
        }
    }

    /// Describes the state of space, for messages.
    pub fn describe(&self) -> String {
        let state = self.log.append_state();
        let (ready, dead, obtainable) =
            (state.segments().ready(), state.segments().dead(), state.segments().obtainable());
        let keep = state.kept_from_writes(&self.volume);
        let (wanted, heads) = (state.wants_room(), state.trim_heads());
        let used: Vec<String> = state
            .segments()
            .iter()
            .filter(|(_, it)| it.state != State::Free)
            .map(|(n, it)| format!("{n}:{:?}/{}/{}", it.state, it.lifetime, it.live))
            .collect();
        format!(
            "ready {ready} dead {dead:?} obtainable {obtainable} keep {keep} trim heads {heads} \
             wanted {wanted} segments {used:?}"
        )
    }

    /// Runs the maintenance worker until nothing is due.
    pub fn quiet(&mut self) {
        for _ in 0..CIRCLE_STEPS {
            if !self.step() {
                return;
            }
        }
        panic!("maintenance makes no progress");
    }

    pub fn checkpoint(&mut self) -> Outcome {
        self.maintenance(|maintenance| maintenance.writer.checkpoint(CheckpointKind::Running))
    }

    /// Runs one request alone.
    pub fn alone(&mut self, submit: impl FnOnce(&mut Guests) -> u32) -> Outcome {
        let before = self.guests().failures.len();
        let tag = submit(&mut self.guests());
        self.guests().kick(0);
        self.drain();
        assert!(!self.guests().is_in_flight(tag));
        let failure = self.guests().failures.get(before).map(|failure| failure.errno);
        failure.map_or(Ok(()), Err)
    }

    pub fn write(&mut self, sectors: Range<u64>) -> Outcome {
        self.alone(|guests| guests.write(0, sectors))
    }

    pub fn zero(&mut self, sectors: Range<u64>) -> Outcome {
        self.alone(|guests| guests.zero(0, sectors))
    }

    pub fn flush(&mut self) -> Outcome {
        self.alone(|guests| guests.flush(0))
    }

    pub fn read(&mut self, sectors: Range<u64>) -> Outcome {
        self.alone(|guests| guests.read(0, sectors))
    }

    /// Writes whole blocks.
    pub fn write_blocks(&mut self, blocks: Range<u64>) -> Outcome {
        self.write(blocks.start * BLOCK_SECTORS..blocks.end * BLOCK_SECTORS)
    }

    pub fn contents(&self) -> Vec<Stamp> {
        contents(&self.log, &self.volume)
    }

    /// Checks that everything readable is as the guests have left it, and that the counts are
    /// right.
    pub fn check(&mut self) {
        self.drain();
        let seen = self.contents();
        let moment = self.disk.now();
        self.guests().model.judge(&seen, moment, super::history_model::End::Kill).unwrap();
        self.audit();
    }

    /// Checks the counts of segments against the map.
    pub fn audit(&self) {
        assert_eq!(self.guests().in_flight(), 0);
        let state = self.log.append_state();
        let shape = self.log.shape;
        let mut live = BTreeMap::<SegmentId, u32>::new();
        let mut places = BTreeSet::new();
        for lba in 0..self.volume.blocks() {
            let map_entry = self.volume.map.get(lba);
            if map_entry.is_mapped() {
                assert!(places.insert(map_entry.address().get()), "block {lba} shares its place");
                *live.entry(shape.segment_of(map_entry.address())).or_default() += 1;
            }
        }
        assert_eq!(places.len() as u64, self.volume.map.mapped());
        let mut ready = 0;
        for (number, segment) in state.segments().iter() {
            let live = live.remove(&number).unwrap_or(0);
            match segment.state {
                State::Free | State::Ready | State::Dead => {
                    assert_eq!((live, segment.live), (0, 0), "segment {number} {segment:?}");
                }
                _ if segment.lifetime == LIFETIME_MAP => {
                    assert_eq!(live, 0, "guest data in map segment {number}");
                }
                State::Open | State::Sealed => {
                    assert_eq!(live, segment.live, "segment {number} {segment:?}");
                }
            }
            ready += u32::from(segment.state == State::Ready);
        }
        assert!(live.is_empty(), "data in segments that are not known");
        for lifetime in 0..LIFETIMES as u8 {
            let open =
                |(_, it): &(SegmentId, Segment)| it.state == State::Open && it.lifetime == lifetime;
            let open = state.segments().iter().filter(open).count();
            assert!(open <= 1, "{open} segments of class {lifetime} are open");
        }
        assert_eq!(ready, state.segments().ready(), "the list of ready segments");
    }

    /// Closes the image cleanly.
    pub fn close(mut self) -> (SimDisk, HistoryModel) {
        self.drain();
        let _ = self.maintenance.close();
        self.abandon()
    }

    /// Closes the image cleanly, and reopens it.
    pub fn reopen(self) -> Result<Self> {
        let (setup, seed) = (self.setup, self.guests().random.u64(..));
        let (disk, model) = self.close();
        Self::open(&disk, setup, model, seed)
    }

    /// Abandons the image like a process that dies; its writes are in the disk's history.
    pub fn abandon(self) -> (SimDisk, HistoryModel) {
        let Self { guests, maintenance, log, disk, .. } = self;
        drop((maintenance, log));
        let guests = Rc::into_inner(guests).expect("the only owner").into_inner();
        let Guests { queues, model, .. } = guests;
        drop(queues);
        (disk, model)
    }
}

pub fn queue(log: &Arc<Log>, volume: &Arc<Volume>, readonly: bool) -> LogChannel {
    let context = QueueContext::alone(QueueDepth(64)).unwrap();
    LogChannel::new(Arc::clone(log), Arc::clone(volume), &context, readonly).unwrap()
}

/// Returns the whole content of a disk, by sector. Unmapped blocks hold zeroes and are not read.
pub fn contents(log: &Arc<Log>, volume: &Arc<Volume>) -> Vec<Stamp> {
    let mut seen = vec![0; volume.capacity().get() as usize];
    let mut channel = queue(log, volume, true);
    let mut at = 0;
    while let Some(first) = volume.map.next_mapped(at..volume.blocks()) {
        let end = volume.map.next_unmapped(first..volume.blocks()).unwrap_or(volume.blocks());
        at = end.min(first + 32);
        let sectors = first * BLOCK_SECTORS..(at * BLOCK_SECTORS).min(volume.capacity().get());
        let bytes = read_now(&mut channel, &sectors).unwrap_or_else(|errno| {
            panic!("reading {sectors:?}: {errno}");
        });
        let stamps = read_stamps(&bytes, sectors.start).unwrap();
        seen[sectors.start as usize..sectors.end as usize].copy_from_slice(&stamps);
    }
    seen
}

/// Reads while nothing else is in flight.
pub fn read_now(
    channel: &mut LogChannel,
    sectors: &Range<u64>,
) -> std::result::Result<Vec<u8>, Errno> {
    let mut bytes = vec![0xaa; (sectors.end - sectors.start) as usize * SECTOR];
    let mut request = Request::new(Op::Read(extent(sectors)), 0);
    // SAFETY: the request comes back before this function returns.
    request.memory.push(unsafe { IoVec::of(&mut bytes) });
    channel.submit(request);
    channel.kick();
    let mut done = Vec::new();
    while done.is_empty() {
        channel.next_look();
        channel.reap(&mut done);
    }
    done[0].outcome.map(|()| bytes)
}

/// Returns the whole content of a disk, block by block; `None` for an unreadable block.
///
/// # Panics
/// If a block holds content that was never written to it.
pub fn readable_contents(log: &Arc<Log>, volume: &Arc<Volume>) -> Vec<Option<Vec<Stamp>>> {
    let mut channel = queue(log, volume, true);
    let read = |lba| {
        let sectors = lba * BLOCK_SECTORS..(lba + 1) * BLOCK_SECTORS;
        let bytes = read_now(&mut channel, &sectors).ok()?;
        Some(read_stamps(&bytes, sectors.start).unwrap())
    };
    (0..volume.blocks()).map(read).collect()
}

/// Loads an image and begins a session of it.
pub fn begin(
    file: Box<dyn FileIo>,
    streams: Option<Streams>,
) -> Result<(Arc<Log>, Arc<Volume>, Maintenance)> {
    let (log, volume, unbegun) = load_for("image".into(), file, false, streams, None)?;
    Ok((log, volume, unbegun.unwrap().begin()?))
}

/// Returns the content that a read-only open finds on a disk.
pub fn contents_read_only(disk: &SimDisk) -> Result<Vec<Stamp>> {
    let before = disk.now();
    let (log, volume, unbegun) =
        load_for("image".into(), Box::new(disk.clone()), true, None, None)?;
    assert!(unbegun.is_none());
    let seen = contents(&log, &volume);
    assert_eq!(disk.now(), before, "a reader has changed the disk");
    Ok(seen)
}
