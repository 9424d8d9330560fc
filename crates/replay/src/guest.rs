//! The guest: keeps a number of requests of a load in flight.

use std::iter::Peekable;
use std::ops::{Add, Sub};
use std::time::{Duration, Instant};

use flowstone_block::{
    AlignedBuf, Channel, Class, Completion, Extent, Geometry, IoVec, NextLook, Op, Request,
    SECTOR_BYTES, Sector, SectorCount,
};
use flowstone_trace::{Event, Kind};

/// Size of the stamp at the beginning of each written block: its address, and a write counter.
const STAMP_BYTES: usize = 16;
const BLOCK_BYTES: u64 = 4096;
/// Longest read or write.
const PART_BYTES: u64 = 1 << 20;

/// Counts of a guest's requests.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked {
    /// All requests.
    pub requests: u64,
    /// Bytes written.
    pub written: u64,
    pub reads: u64,
    pub writes: u64,
    pub flushes: u64,
    /// Discards and write-zeroes.
    pub discards: u64,
    /// Writes that begin where the previous one ended.
    pub in_sequence: u64,
    /// End of the last write.
    end: u64,
}

impl Asked {
    fn count(&mut self, op: Op) {
        self.requests += 1;
        match op {
            Op::Read(_) => self.reads += 1,
            Op::Write(extent) => {
                self.writes += 1;
                self.written += extent.bytes();
                self.in_sequence += u64::from(self.end == extent.start_bytes());
                self.end = extent.start_bytes() + extent.bytes();
            }
            Op::Flush => self.flushes += 1,
            Op::Discard(_) | Op::WriteZeroes { .. } => self.discards += 1,
        }
    }

    /// Returns the counts of this guest and another one.
    pub fn and(&self, other: &Self) -> Self {
        self.each_with(other, u64::add)
    }

    /// Returns the counts since `before`.
    pub fn since(&self, before: &Self) -> Self {
        Self { end: self.end, ..self.each_with(before, u64::sub) }
    }

    fn each_with(&self, other: &Self, result: fn(u64, u64) -> u64) -> Self {
        Self {
            requests: result(self.requests, other.requests),
            written: result(self.written, other.written),
            reads: result(self.reads, other.reads),
            writes: result(self.writes, other.writes),
            flushes: result(self.flushes, other.flushes),
            discards: result(self.discards, other.discards),
            in_sequence: result(self.in_sequence, other.in_sequence),
            end: 0,
        }
    }
}

/// When requests are submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// As soon as one of this many has completed.
    Depth(usize),
    /// At the times of the trace, relative to `start`; at most `depth` at once.
    Trace { start: Instant, depth: usize },
}

/// A request that is not in flight, and its memory.
struct Slot {
    request: Box<Request>,
    memory: AlignedBuf,
}

/// The source of a replay's requests.
pub struct Guest {
    // Dropped first: dropping it waits for its requests, whose memory is below.
    channel: Box<dyn Channel>,
    free: Vec<Slot>,
    on_their_way: Vec<Option<AlignedBuf>>,
    load: Peekable<Box<dyn Iterator<Item = Event>>>,
    pace: Pace,
    /// Requests of this load so far.
    of_load: u64,
    /// Number of them at which it stops, until that is changed.
    stops_at: u64,
    /// The disk: its size, and whether it offers discards.
    disk: Geometry,
    asked: Asked,
    /// Writes so far, for the stamps.
    versions: u64,
    done: Vec<Completion>,
    failure: Option<String>,
}

impl Guest {
    pub fn new(channel: Box<dyn Channel>, disk: Geometry, slots: usize) -> Self {
        let slot = |tag| Slot {
            request: Request::new(Op::Flush, tag as u32),
            memory: AlignedBuf::zeroed(BLOCK_BYTES as usize),
        };
        let nothing: Box<dyn Iterator<Item = Event>> = Box::new(std::iter::empty());
        Self {
            channel,
            free: (0..slots).rev().map(slot).collect(),
            on_their_way: (0..slots).map(|_| None).collect(),
            load: nothing.peekable(),
            pace: Pace::Depth(slots),
            of_load: 0,
            stops_at: u64::MAX,
            disk,
            asked: Asked::default(),
            versions: 0,
            done: Vec::new(),
            failure: None,
        }
    }

    /// Sets the next load, which follows the requests in flight.
    pub fn set_load(&mut self, load: Box<dyn Iterator<Item = Event>>, pace: Pace) {
        (self.load, self.pace, self.of_load) = (load.peekable(), pace, 0);
    }

    /// Sets the number of requests of the load at which it stops.
    pub fn stop_at(&mut self, requests: u64) {
        self.stops_at = requests;
    }

    pub fn asked(&self) -> Asked {
        self.asked
    }

    /// Returns the number of requests of the load so far.
    pub fn of_load(&self) -> u64 {
        self.of_load
    }

    /// Returns the error of a request that has failed.
    pub fn failure(&self) -> Option<String> {
        self.failure.clone()
    }

    /// Returns whether no request is in flight.
    pub fn is_idle(&self) -> bool {
        self.free.len() == self.on_their_way.len()
    }

    /// Returns whether it is where it stops, or the load is at its end and no request in flight.
    pub fn has_stopped(&mut self) -> bool {
        self.of_load >= self.stops_at || (self.is_idle() && self.load.peek().is_none())
    }

    /// Submits and reaps as far as possible at this time. Returns whether there was anything to do.
    pub fn turn(&mut self, now: Instant) -> bool {
        let has_submitted = self.submit(now);
        if has_submitted {
            self.channel.kick();
        }
        let mut done = std::mem::take(&mut self.done);
        self.channel.reap(&mut done);
        let has_completed = !done.is_empty();
        done.drain(..).for_each(|completion| self.complete(completion));
        self.done = done;
        has_submitted || has_completed
    }

    /// Returns when there will be something to do, as the last look before everything waits.
    pub fn next_look(&mut self) -> NextLook {
        let look = self.channel.next_look();
        self.next_due().map_or(look, |at| look.min(NextLook::At(at)))
    }

    /// Returns the time of the trace's next request, if there is room for it.
    fn next_due(&mut self) -> Option<Instant> {
        let Pace::Trace { start, .. } = self.pace else { return None };
        let may = !self.free.is_empty() && self.of_load < self.stops_at;
        let next = self.load.peek().filter(|_| may)?;
        Some(start + next.at.unwrap_or(Duration::ZERO))
    }

    fn submit(&mut self, now: Instant) -> bool {
        let mut has_submitted = false;
        let (Pace::Depth(depth) | Pace::Trace { depth, .. }) = self.pace;
        let idle = self.on_their_way.len() - depth;
        while self.free.len() > idle && self.of_load < self.stops_at {
            if self.next_due().is_some_and(|at| at > now) {
                break;
            }
            let Some(event) = self.load.next() else { break };
            has_submitted |= self.submit_one(&event);
        }
        has_submitted
    }

    fn submit_one(&mut self, event: &Event) -> bool {
        let Some(op) = self.op_of(event) else { return false };
        self.asked.count(op);
        self.of_load += 1;
        if matches!(op, Op::Discard(_)) && !self.disk.discards {
            // A guest's driver does not send it.
            return true;
        }
        let mut slot = self.free.pop().expect("there is room");
        slot.request.reset();
        slot.request.op = op;
        slot.request.class = event.class.map_or(Class::default(), class_of);
        slot.request.durable = event.durable;
        if let Op::Read(extent) | Op::Write(extent) = op {
            let bytes = extent.bytes() as usize;
            if slot.memory.len() < bytes {
                slot.memory = AlignedBuf::zeroed(bytes);
            }
            let memory = &mut slot.memory[..bytes];
            if matches!(op, Op::Write(_)) {
                self.versions += 1;
                stamp(memory, extent.start_bytes(), self.versions);
            }
            // SAFETY: the memory is kept in `on_their_way` until the request has completed, and the
            // channel is dropped before it.
            slot.request.memory.push(unsafe { IoVec::of(memory) });
        }
        let Slot { request, memory } = slot;
        self.on_their_way[request.tag as usize] = Some(memory);
        self.channel.submit(request);
        true
    }

    /// Returns the operation of an event on this disk; `None` if it covers no sector of it.
    fn op_of(&self, event: &Event) -> Option<Op> {
        let first = event.offset / SECTOR_BYTES;
        let end = (event.offset + event.bytes).div_ceil(SECTOR_BYTES).min(self.disk.capacity.get());
        let count = SectorCount::new(end.saturating_sub(first));
        let extent = Extent::new(Sector::new(first), count);
        match event.kind {
            Kind::Flush => Some(Op::Flush),
            // An access of unknown kind is no evidence of a write.
            Kind::Read | Kind::Access => extent.map(Op::Read),
            Kind::Write | Kind::Present => extent.map(Op::Write),
            Kind::Discard => extent.map(Op::Discard),
            Kind::WriteZeroes => extent.map(|extent| Op::WriteZeroes { extent, unmap: true }),
        }
    }

    fn complete(&mut self, completion: Completion) {
        let Completion { request, outcome } = completion;
        if let Err(errno) = outcome {
            self.failure.get_or_insert_with(|| format!("{:?} failed: {errno}", request.op));
        }
        let memory = self.on_their_way[request.tag as usize].take().expect("it was on its way");
        self.free.push(Slot { request, memory });
    }
}

fn class_of(class: flowstone_trace::Class) -> Class {
    match class {
        flowstone_trace::Class::Data => Class::Data,
        flowstone_trace::Class::Metadata => Class::Metadata,
        flowstone_trace::Class::Journal => Class::Journal,
    }
}

/// Splits an event of a trace into requests: several for a long read or write, none for one without
/// a byte.
pub fn requests_of(event: Event) -> impl Iterator<Item = Event> {
    let most = match event.kind {
        Kind::Read | Kind::Write | Kind::Access | Kind::Present => PART_BYTES,
        Kind::Flush | Kind::Discard | Kind::WriteZeroes => u64::MAX,
    };
    let end = event.offset + event.bytes;
    let has_any = event.bytes > 0 || event.kind == Kind::Flush;
    let first = has_any.then(|| Event { bytes: event.bytes.min(most), ..event });
    std::iter::successors(first, move |before| {
        let offset = before.offset + before.bytes;
        (offset < end).then(|| Event { offset, bytes: (end - offset).min(most), ..event })
    })
}

/// Stamps blocks, so that they differ from each other and from their previous content. The rest
/// stays zero.
fn stamp(memory: &mut [u8], first: u64, version: u64) {
    for (block, at) in memory.chunks_mut(BLOCK_BYTES as usize).zip((first..).step_by(4096)) {
        block[..8].copy_from_slice(&(at / SECTOR_BYTES + 1).to_le_bytes());
        block[8..STAMP_BYTES].copy_from_slice(&version.to_le_bytes());
    }
}
