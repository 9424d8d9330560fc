//! One queue's way through the cache.
//!
//! Reads are looked up at the kick: what finding a block takes lies in memory that no cache of the CPU holds, and
//! the waits of all reads of a batch for that are one. A read whose blocks are all held is answered by copies.
//! Any other read goes down as a whole: blocks that are to be held are read into frames and copied to the guest,
//! the others go straight to its memory. A write goes down at once and completes when the disk has it; blocks
//! that are to be held are copied out of the guest's memory once, into the frames that the disk writes from, so
//! that the guest cannot make the two differ. Sequential reads are read ahead of, into memory that the policy
//! hears of when a guest asks for it.

mod ahead;
mod below;

use std::io;
use std::ops::Range;
use std::sync::Arc;

use flowstone_block::{
    Channel, Class, Completion, Extent, Layer, NextLook, Op, QueueContext, QueueDepth, Reactor,
    Request, SECTOR_BYTES, SectorCount, TokenSource, count, mutant,
};
use slab::Slab;

use self::ahead::AheadReads;
use self::below::{InFlight, Lists, Purpose};
use crate::counters::QueueCounters;
use crate::disk::CachedDisk;
use crate::frames::Frame;
use crate::names::BlockId;
use crate::table::{Fill, Found, PREFETCHED_MAX};
use crate::{BLOCK_BYTES, BLOCK_SECTORS};

/// Requests of more blocks pass by: few are read again.
const BLOCKS_MAX: u64 = 256;
/// Frames that wait for their copy, pinned: then it is made before the batch is complete.
const HELD_MAX: usize = 64;
/// Most pieces of memory of a request: what one call takes (`UIO_MAXIOV`).
const PIECES_MAX: u64 = 1024;

pub struct CachedChannel {
    // First: what is in flight below uses frames.
    base: Box<dyn Channel>,
    layer: Arc<dyn Layer>,
    disk: Arc<CachedDisk>,
    /// Of a guest's queue only.
    counters: Option<Arc<QueueCounters>>,
    /// The disk's size as it was seen last.
    capacity: SectorCount,
    in_flight: Slab<InFlight>,
    tokens: TokenSource,
    /// Read from memory, to be reaped.
    done: Vec<Completion>,
    arrived: Vec<Completion>,
    /// Reads that are to be looked up at the kick, or before a change.
    pending: Vec<(Box<Request>, Extent)>,
    /// Reads to be answered from memory, and the frames of all of their blocks, pinned.
    answers: Vec<(Box<Request>, Extent)>,
    held: Vec<Frame>,
    /// Lists of requests that have come back.
    spare: Vec<Lists>,
    ahead: AheadReads,
    reactor: Reactor,
}

impl CachedChannel {
    pub fn new(
        layer: &Arc<dyn Layer>,
        disk: &Arc<CachedDisk>,
        counters: Option<Arc<QueueCounters>>,
        context: &QueueContext,
    ) -> io::Result<Self> {
        // With room for what is read ahead.
        let depth = QueueDepth(context.depth.0.saturating_add(ahead::REQUESTS_MAX as u16));
        let base = layer.channel(&QueueContext { depth, ..context.clone() })?;
        Ok(Self {
            base,
            capacity: layer.geometry().capacity,
            layer: Arc::clone(layer),
            disk: Arc::clone(disk),
            counters,
            in_flight: Slab::new(),
            tokens: TokenSource::new(),
            done: Vec::new(),
            arrived: Vec::new(),
            pending: Vec::new(),
            answers: Vec::new(),
            held: Vec::new(),
            spare: Vec::new(),
            ahead: AheadReads::new(context.origin),
            reactor: context.reactor.clone(),
        })
    }

    /// The blocks that share a sector with `extent`, of those that can be held.
    fn blocks(&self, extent: Extent) -> Range<BlockId> {
        let numbers = numbers(extent);
        let disk = self.disk.number;
        let id = |number: u64| BlockId::of_disk(disk, number.min(BlockId::NUMBER_MAX));
        id(numbers.start)..id(numbers.end)
    }

    /// Whether the cache may hold what this request carries.
    fn may_hold(&self, request: &Request, blocks: &Range<BlockId>) -> bool {
        let is_journal = request.class == Class::Journal && !self.disk.holds_journals;
        let is_small = len(blocks) <= BLOCKS_MAX;
        let is_numbered = blocks.end.number() < BlockId::NUMBER_MAX;
        // Each frame may cut a piece of the guest's memory in two.
        let is_whole = request.memory.len() as u64 + 2 * len(blocks) <= PIECES_MAX;
        let may = !is_journal && is_small && is_numbered && is_whole && self.counters.is_some();
        if !may && let Some(counters) = &self.counters {
            count(&counters.bypassed, len(blocks));
        }
        may
    }

    /// Whether all of the block with this number lies on the disk.
    fn is_whole(&mut self, number: u64) -> bool {
        let end = (number + 1) * BLOCK_SECTORS;
        if end > self.capacity.get() {
            // It may have grown.
            self.capacity = self.layer.geometry().capacity;
        }
        end <= self.capacity.get() || mutant("cache.read.past-the-end")
    }

    fn read(&mut self, request: Box<Request>, extent: Extent) {
        let blocks = self.blocks(extent);
        if !self.may_hold(&request, &blocks) {
            return self.base.submit(request);
        }
        let sectors = extent.start().get()..extent.end().get();
        let disk_blocks = (self.capacity.get() / BLOCK_SECTORS).min(BlockId::NUMBER_MAX);
        let ahead = self.ahead.streams.read(sectors, disk_blocks, self.disk.cache.window_max());
        self.answer_or_read(request, extent);
        if let Some(numbers) = ahead {
            self.read_ahead(numbers);
        }
    }

    fn answer_or_read(&mut self, request: Box<Request>, extent: Extent) {
        let blocks = self.blocks(extent);
        if self.ahead.is_reading(&blocks) {
            self.ahead.waiting.push((request, extent));
            return;
        }
        let mut lists = self.spare.pop().unwrap_or_default();
        let before = self.held.len();
        let all_held = self.look_up(blocks.clone(), &mut lists.fills);
        if let Some(counters) = &self.counters {
            let class = request.class as usize;
            let counter = if all_held { &counters.hits } else { &counters.misses };
            count(&counter[class], len(&blocks));
        }
        if all_held {
            self.spare.push(lists);
            self.answers.push((request, extent));
            if self.held.len() >= HELD_MAX {
                self.answer();
            }
            return;
        }
        let memory = &self.disk.cache.memory;
        self.held.drain(before..).for_each(|frame| memory.unpin(frame));
        if lists.fills.is_empty() {
            self.spare.push(lists);
            self.base.submit(request);
        } else {
            self.send(request, extent, lists, Purpose::Read);
        }
    }

    /// Returns whether all blocks are held: their frames are in `held`, pinned. Else some may be, and
    /// `fills` are to be read.
    fn look_up(&mut self, blocks: Range<BlockId>, fills: &mut Vec<Fill>) -> bool {
        // Before the lock is taken, since it may ask the image.
        let last_is_whole = self.is_whole(BlockId(blocks.end.0 - 1).number());
        let Self { disk, held, counters, .. } = self;
        let memory = &disk.cache.memory;
        let mut table = disk.cache.table();
        let (mut all_held, mut refused) = (true, 0);
        for number in blocks.start.0..blocks.end.0 {
            if number + 1 == blocks.end.0 && !last_is_whole {
                all_held = false;
                break;
            }
            match table.read(memory, BlockId(number)) {
                Found::Held(frame) => {
                    held.push(frame);
                    continue;
                }
                Found::Fill(fill) => fills.push(fill),
                Found::Busy => {}
                Found::Refused => refused += 1,
            }
            all_held = false;
        }
        drop(table);
        if let Some(counters) = counters {
            count(&counters.refusals, refused);
        }
        all_held
    }

    /// Copies what is held to the reads that have found it.
    fn answer(&mut self) {
        let memory = &self.disk.cache.memory;
        let mut held = self.held.drain(..);
        for (mut request, extent) in self.answers.drain(..) {
            for (number, frame) in numbers(extent).zip(held.by_ref()) {
                // SAFETY: it is pinned.
                copy_in(&mut request, extent, number, unsafe { memory.bytes(frame) });
                memory.unpin(frame);
            }
            self.done.push(Completion { request, outcome: Ok(()) });
        }
    }

    /// Looks up the reads of a batch, in order.
    fn read_pending(&mut self) {
        let mut pending = std::mem::take(&mut self.pending);
        while !pending.is_empty() {
            let count = pending.len().min(PREFETCHED_MAX);
            let ids = |blocks: Range<BlockId>| (blocks.start.0..blocks.end.0).map(BlockId);
            let blocks = pending[..count].iter().flat_map(|(_, extent)| ids(self.blocks(*extent)));
            let cache = &self.disk.cache;
            cache.table().prefetch(&cache.memory, blocks.take(PREFETCHED_MAX));
            for (request, extent) in pending.drain(..count) {
                self.read(request, extent);
            }
            self.answer();
        }
        self.pending = pending;
    }

    fn write(&mut self, request: Box<Request>, extent: Extent) {
        let blocks = self.blocks(extent);
        if !self.may_hold(&request, &blocks) {
            return self.change(request, extent);
        }
        let mut lists = self.spare.pop().unwrap_or_default();
        let Self { disk, counters, .. } = self;
        let memory = &disk.cache.memory;
        let mut table = disk.cache.table();
        let mut refused = 0;
        for number in blocks.start.0..blocks.end.0 {
            let block = BlockId(number);
            let is_whole = overlap(extent, block.number()).len() == BLOCK_BYTES;
            match table.begin_write(memory, block, is_whole) {
                Found::Fill(fill) => lists.fills.push(fill),
                Found::Refused => refused += 1,
                Found::Held(_) | Found::Busy => {}
            }
        }
        drop(table);
        if let Some(counters) = counters {
            count(&counters.refusals, refused);
        }
        for fill in &lists.fills {
            let at = overlap(extent, fill.block.number()).start;
            // SAFETY: the frame was taken for this fill.
            request.copy_out(at, unsafe { memory.bytes_mut(fill.frame) });
        }
        self.send(request, extent, lists, Purpose::Change(blocks));
    }

    /// A change after which nothing of its range is held: discards, zeroes, journals, very large writes.
    fn change(&mut self, request: Box<Request>, extent: Extent) {
        let blocks = self.blocks(extent);
        if blocks.is_empty() {
            return self.base.submit(request);
        }
        let cache = &self.disk.cache;
        cache.table().begin_change(blocks.clone());
        let mut from = Some(blocks.start).filter(|_| !mutant("cache.discard.forgets-nothing"));
        while let Some(start) = from {
            from = cache.table().forget_some(&cache.memory, start..blocks.end);
            if from.is_some() {
                // A large range takes its time, and others wait for the lock.
                std::thread::yield_now();
            }
        }
        let lists = self.spare.pop().unwrap_or_default();
        self.send(request, extent, lists, Purpose::Change(blocks));
    }
}

impl Channel for CachedChannel {
    fn submit(&mut self, request: Box<Request>) {
        if let Op::Read(extent) = request.op {
            return self.pending.push((request, extent));
        }
        self.read_pending();
        match request.op {
            Op::Write(extent) => self.write(request, extent),
            Op::Discard(extent) | Op::WriteZeroes { extent, .. } => self.change(request, extent),
            Op::Read(_) | Op::Flush => self.base.submit(request),
        }
    }

    fn kick(&mut self) {
        self.read_pending();
        self.base.kick();
    }

    fn reap(&mut self, done: &mut Vec<Completion>) {
        let mut arrived = std::mem::take(&mut self.arrived);
        self.base.reap(&mut arrived);
        let mut again = false;
        for completion in arrived.drain(..) {
            let Some(index) = self.tokens.index_of(completion.request.token) else {
                done.push(completion);
                continue;
            };
            match self.finish(index, completion) {
                Some(completion) => done.push(completion),
                None => again = true,
            }
        }
        self.arrived = arrived;
        self.answer();
        done.append(&mut self.done);
        if again {
            self.base.kick();
        }
    }

    fn next_look(&mut self) -> NextLook {
        self.read_pending();
        NextLook::now_if(!self.done.is_empty()).min(self.base.next_look())
    }
}

impl Drop for CachedChannel {
    /// Waits for what is on its way, which is what is read ahead, since no guest waits for that: its frames
    /// are to be given back.
    fn drop(&mut self) {
        let mut done = Vec::new();
        while !self.in_flight.is_empty() {
            let reactor = self.reactor.clone();
            reactor.sleep(|| self.base.next_look());
            self.reap(&mut done);
        }
    }
}

fn len(blocks: &Range<BlockId>) -> u64 {
    blocks.end.0 - blocks.start.0
}

/// The numbers of the blocks that share a sector with `extent`.
fn numbers(extent: Extent) -> Range<u64> {
    extent.start().get() / BLOCK_SECTORS..extent.end().get().div_ceil(BLOCK_SECTORS)
}

/// The part of the request's bytes that lies in the block with this number.
fn overlap(extent: Extent, number: u64) -> Range<usize> {
    let from = extent.start().get().max(number * BLOCK_SECTORS);
    let to = extent.end().get().min((number + 1) * BLOCK_SECTORS);
    let bytes = |sector: u64| ((sector - extent.start().get()) * SECTOR_BYTES) as usize;
    bytes(from)..bytes(to)
}

/// Copies what a read wants of the block with this number.
fn copy_in(request: &mut Request, extent: Extent, number: u64, block: &[u8]) {
    let part = overlap(extent, number);
    let skipped = extent.start().get().saturating_sub(number * BLOCK_SECTORS) * SECTOR_BYTES;
    let from = skipped as usize;
    request.copy_in(part.start, &block[from..from + part.len()]);
}
