//! One queue under load: a fixed set of requests that are reused.
//!
//! Every request has its chains written once per kind; sending it again stores a header, a status
//! filler and one ring entry. Control bytes of a request share one cache line:
//!
//! ```text
//! 0 header (16)   16 status (1)   32 range of a discard or write-zeroes (16)   64 next request
//! ```

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::check::Checker;
use super::map::{Content, VerifyMap};
use super::options::{Mix, Order, Workload};
use super::pace::Pace;
use super::source::{Kind, Source};
use super::stats::Stats;
use crate::Result;
use crate::client::{Ring, Status};
use crate::driver::{Head, Memory, Segment, Slice};
use crate::virtio::{
    HEADER_BYTES, RANGE_BYTES, RANGE_UNMAP, SECTOR_BYTES, T_DISCARD, T_FLUSH, T_IN, T_OUT,
    T_WRITE_ZEROES,
};

/// Control bytes of one request.
const CONTROL_BYTES: usize = 64;
const STATUS_AT: usize = 16;
const RANGE_AT: usize = 32;
const COMMITS: Workload = Workload { order: Order::Random, mix: Mix::WRITE };
/// Tries of a verifying lane to find a block that is not in flight before it waits.
const CLAIM_TRIES: usize = 32;

/// The options of a lane.
#[derive(Clone, Debug)]
pub(super) struct LaneOptions {
    /// Requests in flight, without commits.
    pub(super) iodepth: u16,
    /// Bytes of the disk in which one more request commits, see [`Aside`](super::Aside).
    pub(super) commits: Option<Range<u64>>,
    /// Size of a request.
    pub(super) block_bytes: u64,
    /// Longest data descriptor.
    pub(super) segment_bytes: usize,
    /// Kinds that will be sent.
    pub(super) kinds: Vec<Kind>,
    /// Byte offset of block 0 on the disk.
    pub(super) offset_bytes: u64,
    /// Number of writes between flushes; 0 means no flushes.
    pub(super) flush_every: u64,
    /// Leave the data as they are allocated, zero.
    pub(super) zero_data: bool,
}

impl LaneOptions {
    /// Returns the number of requests that are reused. The one that commits is the last.
    fn slots(&self) -> u16 {
        self.iodepth + u16::from(self.commits.is_some())
    }

    /// Returns the guest memory of a lane, without its ring.
    pub(super) fn footprint(&self) -> usize {
        let data = usize::from(self.slots()) * self.block_bytes as usize;
        usize::from(self.slots()) * CONTROL_BYTES + data + 3 * 4096
    }

    /// Returns the ring descriptors of all chains of all requests.
    pub(super) fn descriptors(&self, indirect: bool) -> usize {
        let of = |&kind: &Kind| if indirect { 1 } else { self.chain_length(kind) };
        usize::from(self.slots()) * self.kinds.iter().map(of).sum::<usize>()
    }

    /// Returns the descriptors of one chain.
    pub(super) fn chain_length(&self, kind: Kind) -> usize {
        match kind {
            Kind::Read | Kind::Write => {
                2 + (self.block_bytes as usize).div_ceil(self.segment_bytes)
            }
            Kind::Discard | Kind::Zeroes => 3,
            Kind::Flush => 2,
        }
    }
}

/// A queue and its requests.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) ring: Ring,
    /// The index of its disk in the run.
    pub(super) disk: usize,
    options: LaneOptions,
    source: Source,
    /// The blocks of commits, and whether the last one is not synced.
    commits: Option<(Source, bool)>,
    control: Slice,
    data: Slice,
    slots: Vec<Slot>,
    idle: Vec<u16>,
    slot_of_head: Vec<u16>,
    /// Requests still to be sent.
    left: u64,
    /// The times of sending; `None` sends as soon as there is room.
    pub(super) pace: Option<Pace>,
    writes_unflushed: u64,
    checker: Option<Checker>,
    /// While verifying at the end: the next block to read.
    sweep: Option<u64>,
}

#[derive(Debug)]
struct Slot {
    heads: [Option<Head>; 5],
    kind: Kind,
    block: u64,
    content: Content,
    sent_ns: u64,
}

impl Lane {
    /// Allocates all requests in `memory`.
    pub(super) fn new(
        memory: &Memory,
        ring: Ring,
        options: LaneOptions,
        source: Source,
        checker: Option<Checker>,
        quota: u64,
    ) -> Result<Self> {
        let depth = options.slots();
        let commits = options.commits.as_ref().map(|bytes| {
            let blocks = (bytes.end - bytes.start) / options.block_bytes;
            (Source::new(COMMITS, bytes.start / options.block_bytes, blocks, blocks), false)
        });
        let control = memory.alloc(usize::from(depth) * CONTROL_BYTES, 4096)?;
        let data = memory.alloc(usize::from(depth) * options.block_bytes as usize, 4096)?;
        let size = usize::from(ring.queue.options().size);
        let mut lane = Lane {
            ring,
            disk: 0,
            options,
            source,
            commits,
            control,
            data,
            slots: Vec::with_capacity(usize::from(depth)),
            idle: (0..depth).rev().collect(),
            slot_of_head: vec![0; size],
            left: quota,
            pace: None,
            writes_unflushed: 0,
            checker,
            sweep: None,
        };
        for slot in 0..depth {
            lane.add_slot(slot)?;
        }
        if !lane.options.zero_data {
            lane.fill_data();
        }
        Ok(lane)
    }

    /// Returns the index of its statistics; those of commits are behind them.
    pub(super) fn account(&self) -> usize {
        2 * self.disk
    }

    /// Returns when the next request is to be sent; `None` if it does not wait for a time.
    #[inline]
    pub(super) fn due_ns(&self) -> Option<u64> {
        let pace = self.pace.as_ref().filter(|_| self.left > 0 && !self.idle.is_empty());
        pace.map(Pace::due_ns)
    }

    /// Returns whether nothing is in flight and nothing will be.
    pub(super) fn is_over(&self) -> bool {
        self.ring.queue.in_flight() == 0 && self.due_ns().is_none()
    }

    /// Sends as many requests as depth, pace, quota and free blocks allow, without publishing them.
    pub(super) fn refill(&mut self, now_ns: u64) {
        while let Some(&slot) = self.idle.last() {
            let next =
                if self.is_commit(slot) { self.next_commit() } else { self.next_request(now_ns) };
            let Some((kind, block)) = next else {
                return;
            };
            self.idle.pop();
            self.send(slot, kind, block, now_ns);
        }
    }

    /// Processes all used entries; `stats` are its accounts. Returns their number.
    pub(super) fn reap(&mut self, now_ns: u64, stats: &mut [Stats]) -> Result<u64> {
        let mut answers = 0;
        while let Some(used) = self.ring.queue.pop()? {
            let slot = self.slot_of_head[usize::from(used.head.0)];
            self.finish(slot, now_ns, &mut stats[usize::from(self.is_commit(slot))])?;
            self.idle.push(slot);
            answers += 1;
        }
        Ok(answers)
    }

    /// Stops sending requests.
    pub(super) fn stop(&mut self) {
        self.left = 0;
        self.writes_unflushed = 0;
        self.sweep = None;
        self.commits.iter_mut().for_each(|(_, is_unsynced)| *is_unsynced = false);
    }

    /// Starts reading every block of known content, once.
    pub(super) fn start_sweep(&mut self) {
        self.stop();
        self.sweep = Some(self.source.first());
    }

    /// Returns the number of blocks verified so far.
    pub(super) fn checked(&self) -> u64 {
        self.checker.as_ref().map_or(0, |checker| checker.checked)
    }

    /// Returns the map of the lane's blocks.
    pub(super) fn into_map(self) -> VerifyMap {
        self.checker.map(Checker::into_map).unwrap_or_default()
    }

    /// Returns whether one of its requests commits.
    pub(super) fn has_commits(&self) -> bool {
        self.commits.is_some()
    }

    fn is_commit(&self, slot: u16) -> bool {
        self.has_commits() && slot == self.options.iodepth
    }

    /// Returns the write of a commit, or the sync of the last one.
    fn next_commit(&mut self) -> Option<(Kind, u64)> {
        let (source, is_unsynced) = self.commits.as_mut()?;
        if std::mem::take(is_unsynced) {
            return Some((Kind::Flush, 0));
        }
        self.left = self.left.checked_sub(1)?;
        *is_unsynced = true;
        Some((Kind::Write, source.block()))
    }

    fn next_request(&mut self, now_ns: u64) -> Option<(Kind, u64)> {
        if let Some(from) = self.sweep {
            return self.next_sweep(from);
        }
        if self.options.flush_every != 0 && self.writes_unflushed >= self.options.flush_every {
            self.writes_unflushed = 0;
            return Some((Kind::Flush, 0));
        }
        if self.left == 0 {
            return None;
        }
        if self.pace.as_ref().is_some_and(|pace| pace.due_ns() > now_ns) {
            return None;
        }
        let block = self.pick()?;
        self.left -= 1;
        if let Some(pace) = &mut self.pace {
            pace.sent(now_ns);
        }
        let kind = self.source.kind();
        self.writes_unflushed += u64::from(kind == Kind::Write);
        Some((kind, block))
    }

    fn next_sweep(&mut self, from: u64) -> Option<(Kind, u64)> {
        let checker = self.checker.as_mut()?;
        let Some(block) = checker.next_known(from) else {
            self.sweep = None;
            return None;
        };
        checker.claim(block);
        self.sweep = Some(block + 1);
        Some((Kind::Read, block))
    }

    #[inline]
    fn pick(&mut self) -> Option<u64> {
        let Some(checker) = &mut self.checker else {
            return Some(self.source.block());
        };
        (0..CLAIM_TRIES).map(|_| self.source.block()).find(|&block| checker.claim(block))
    }

    #[inline]
    fn send(&mut self, slot: u16, kind: Kind, block: u64, now_ns: u64) {
        let first = if self.is_commit(slot) { 0 } else { self.options.offset_bytes };
        let offset = first + block * self.options.block_bytes;
        self.write_control(slot, kind, offset / SECTOR_BYTES);
        let content = match &mut self.checker {
            None => Content::Unknown,
            Some(checker) => {
                let data = data_of(&self.data, slot, &self.options);
                checker.prepare(kind, block, offset, &data)
            }
        };
        let state = &mut self.slots[usize::from(slot)];
        (state.kind, state.block, state.content, state.sent_ns) = (kind, block, content, now_ns);
        let head = state.heads[kind as usize].expect("chains of all kinds in use are prepared");
        self.ring.queue.send(head);
    }

    #[inline]
    fn finish(&mut self, slot: u16, now_ns: u64, stats: &mut Stats) -> Result<()> {
        let status_at = usize::from(slot) * CONTROL_BYTES + STATUS_AT;
        let status = self.control.cell8(status_at).load(Ordering::Relaxed);
        let state = &self.slots[usize::from(slot)];
        stats.record(state.kind, now_ns.saturating_sub(state.sent_ns));
        let (kind, block, content) = (state.kind, state.block, state.content);
        if status != 0 {
            stats.fail(|| format!("{kind:?} of block {block}: {:?}", Status::from(status)));
        }
        let Some(checker) = &mut self.checker else {
            return Ok(());
        };
        if status != 0 {
            checker.failed(kind, block);
            return Ok(());
        }
        let data = data_of(&self.data, slot, &self.options);
        let offset = self.options.offset_bytes + block * self.options.block_bytes;
        checker.succeeded(kind, block, offset, content, &data)
    }

    #[inline]
    fn write_control(&self, slot: u16, kind: Kind, sector: u64) {
        let at = usize::from(slot) * CONTROL_BYTES;
        let store = |at: usize, value: u64| {
            self.control.cell64(at).store(value.to_le(), Ordering::Relaxed);
        };
        let sectors = self.options.block_bytes / SECTOR_BYTES;
        let (code, header_sector, range_flags) = match kind {
            Kind::Read => (T_IN, sector, None),
            Kind::Write => (T_OUT, sector, None),
            Kind::Flush => (T_FLUSH, 0, None),
            Kind::Discard => (T_DISCARD, 0, Some(0)),
            Kind::Zeroes => (T_WRITE_ZEROES, 0, Some(RANGE_UNMAP)),
        };
        store(at, u64::from(code));
        store(at + 8, header_sector);
        if let Some(flags) = range_flags {
            store(at + RANGE_AT, sector);
            store(at + RANGE_AT + 8, sectors | u64::from(flags) << 32);
        }
        self.control.cell8(at + STATUS_AT).store(Status::FILLER, Ordering::Relaxed);
    }

    fn add_slot(&mut self, slot: u16) -> Result<()> {
        let mut heads = [None; 5];
        for kind in self.options.kinds.clone() {
            let head = self.ring.queue.prepare(&self.chain(slot, kind))?;
            self.slot_of_head[usize::from(head.0)] = slot;
            heads[kind as usize] = Some(head);
        }
        let (kind, block, content, sent_ns) = (Kind::Flush, 0, Content::Unknown, 0);
        self.slots.push(Slot { heads, kind, block, content, sent_ns });
        Ok(())
    }

    fn chain(&self, slot: u16, kind: Kind) -> Vec<Segment> {
        let control = self.control.part(usize::from(slot) * CONTROL_BYTES, CONTROL_BYTES);
        let at = |offset, bytes, writable| control.part(offset, bytes).segment(writable);
        let mut chain = vec![at(0, HEADER_BYTES, false)];
        match kind {
            Kind::Read | Kind::Write => {
                let data = data_of(&self.data, slot, &self.options);
                chain.extend(data.segments(self.options.segment_bytes, kind == Kind::Read));
            }
            Kind::Discard | Kind::Zeroes => chain.push(at(RANGE_AT, RANGE_BYTES, false)),
            Kind::Flush => {}
        }
        chain.push(at(STATUS_AT, 1, true));
        chain
    }

    /// Fills the data with incompressible bytes, which no file system can store for free.
    fn fill_data(&self) {
        let mut random = fastrand::Rng::with_seed(0x666c_6f77);
        let mut chunk = [0; 4096];
        for start in (0..self.data.len()).step_by(chunk.len()) {
            let bytes = chunk.len().min(self.data.len() - start);
            random.fill(&mut chunk[..bytes]);
            self.data.write(start, &chunk[..bytes]);
        }
    }
}

/// Returns the payload of one request.
fn data_of(data: &Slice, slot: u16, options: &LaneOptions) -> Slice {
    let bytes = options.block_bytes as usize;
    data.part(usize::from(slot) * bytes, bytes)
}
