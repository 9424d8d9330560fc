//! The channel of one queue through the cache.
//!
//! Reads are looked up at the kick, all of a batch together ([`reads`]). A read whose blocks are
//! all held is answered by copies. Any other read is sent below as a whole: blocks to be held are
//! read into frames and copied to the guest, the others go directly to its memory. A write is sent
//! below at once and completes when the disk has completed it; blocks to be held are copied out of
//! the guest's memory once, into the frames that the disk writes from, so that the guest cannot
//! make the two differ. Sequential reads cause read-ahead, into memory that the policy learns of
//! when a guest reads it.

mod ahead;
mod below;
mod reads;

use std::io;
use std::ops::Range;
use std::sync::Arc;

use flowstone_block::{
    Channel, Completion, Extent, Layer, NextLook, Op, QueueContext, QueueDepth, Reactor, Request,
    SECTOR_BYTES, SectorCount, TokenSource, count, mutated,
};
use slab::Slab;

use self::ahead::AheadReads;
use self::below::{InFlight, Lists, Purpose};
use self::reads::{Pending, Reads};
use crate::counters::QueueCounters;
use crate::disk::CachedDisk;
use crate::names::BlockId;
use crate::table::{Forgetting, Found};
use crate::{BLOCK_BYTES, BLOCK_SECTORS};

pub struct CachedChannel {
    // First: requests in flight below use frames.
    base: Box<dyn Channel>,
    layer: Arc<dyn Layer>,
    disk: Arc<CachedDisk>,
    /// For queues of guests only.
    counters: Option<Arc<QueueCounters>>,
    /// Size of the disk when last checked.
    capacity: SectorCount,
    in_flight: Slab<InFlight>,
    tokens: TokenSource,
    /// Reads answered from the cache, to be reaped.
    done: Vec<Completion>,
    arrived: Vec<Completion>,
    reads: Reads,
    /// Lists of completed requests, for reuse.
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
        // Includes room for read-ahead.
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
            reads: Reads::default(),
            spare: Vec::new(),
            ahead: AheadReads::new(context.origin),
            reactor: context.reactor.clone(),
        })
    }

    fn write(&mut self, request: Box<Request>, extent: Extent) {
        let blocks = self.disk.blocks(extent);
        if !self.disk.may_hold(&request, &blocks, self.counters.as_deref()) {
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

    /// Submits a change whose range is not held afterwards: discards, zeroes, journals, very large
    /// writes.
    fn change(&mut self, request: Box<Request>, extent: Extent) {
        let blocks = self.disk.blocks(extent);
        if blocks.is_empty() {
            return self.base.submit(request);
        }
        let cache = &self.disk.cache;
        let mut forgetting = Forgetting::of(blocks.clone());
        while forgetting.step(&mut cache.table(), &cache.memory) {
            std::thread::yield_now();
        }
        let lists = self.spare.pop().unwrap_or_default();
        self.send(request, extent, lists, Purpose::Change(blocks));
    }
}

impl Channel for CachedChannel {
    fn submit(&mut self, request: Box<Request>) {
        if let Op::Read(extent) = request.op {
            let read = Pending { request, extent, has_waited: false };
            return self.reads.pending.push_back(read);
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
        // Reads that have waited for read-ahead.
        again |= !self.reads.pending.is_empty();
        self.read_pending();
        done.append(&mut self.done);
        if again {
            self.base.kick();
        }
    }

    fn next_look(&mut self) -> NextLook {
        self.read_pending();
        NextLook::now_if(!self.done.is_empty()).min(self.base.next_look())
    }

    fn retire(&mut self) -> bool {
        let mut done = Vec::new();
        self.reap(&mut done);
        // Includes read-ahead: no guest waits for it, and its frames must be given back.
        let is_alone = mutated("cache.retire.leaves-reads-behind", self.in_flight.is_empty(), true);
        is_alone && self.base.retire()
    }
}

impl Drop for CachedChannel {
    /// Waits for requests in flight, which are read-ahead only, since no guest waits for it: its
    /// frames must be given back.
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

/// Returns the part of the request's bytes that lies in the block with this number.
fn overlap(extent: Extent, number: u64) -> Range<usize> {
    let from = extent.start().get().max(number * BLOCK_SECTORS);
    let to = extent.end().get().min((number + 1) * BLOCK_SECTORS);
    let bytes = |sector: u64| ((sector - extent.start().get()) * SECTOR_BYTES) as usize;
    bytes(from)..bytes(to)
}

/// Copies a read's part of the block with this number.
fn copy_in(request: &mut Request, extent: Extent, number: u64, block: &[u8]) {
    let part = overlap(extent, number);
    let skipped = extent.start().get().saturating_sub(number * BLOCK_SECTORS) * SECTOR_BYTES;
    let from = skipped as usize;
    request.copy_in(part.start, &block[from..from + part.len()]);
}
