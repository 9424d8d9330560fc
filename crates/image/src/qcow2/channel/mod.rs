//! One queue of a qcow2 image. What needs no more than a look at tables in memory is carried out
//! here, in the queue's own ring: reads of data and zeroes, writes in place, and writes to clusters
//! that have had nothing in them. Everything else goes to the [`SlowPath`], which may block.

mod flushes;
mod plan;

use std::io;
use std::sync::Arc;

use flowstone_block::{
    Channel, Completion, Errno, Extent, IoVec, NextLook, Op, Outcome, QueueContext, Reactor,
    Request,
};
use flowstone_fileio::{FileChannel, FileCompletion, FileOffset, FileOp, FileRequest, MemoryList};
use slab::Slab;

use self::flushes::Flushes;
use self::plan::{Piece, Plan};
use super::core::Core;
use super::epochs::EpochPins;
use super::shape::GuestCluster;
use super::slow_path::SlowPath;
use crate::DiscardMode;
use crate::completion_queue::CompletionQueue;
use crate::pace::ActivityCounter;
use crate::trims::Trims;

/// One queue's way into a qcow2 image.
pub struct Qcow2Channel {
    core: Arc<Core>,
    slow_path: Arc<SlowPath>,
    trims: Arc<Trims>,
    activity: Arc<ActivityCounter>,
    reactor: Reactor,
    file: Box<dyn FileChannel>,
    /// Where others put what they have done for us.
    completions: Arc<CompletionQueue>,
    /// Requests that others have.
    handed_over: usize,
    /// Whether the thread that discards has yet to be told.
    trims_queued: bool,
    pins: EpochPins,
    active: Slab<ActiveRequest>,
    flushes: Flushes,
    /// Used again for each request.
    plan: Plan,
    done: Vec<FileCompletion>,
    /// Requests that are done.
    completed: Vec<Completion>,
}

/// A request that file requests are on their way for.
struct ActiveRequest {
    request: Box<Request>,
    /// When it looked into the map.
    epoch: u64,
    /// File requests that are not back yet.
    pieces: usize,
    outcome: Outcome,
    /// Clusters that get their first data.
    fills: Vec<GuestCluster>,
    /// Memory of each piece, where one piece is not all.
    lists: Vec<Box<[IoVec]>>,
}

/// The tag of the file's flush, which serves several requests.
const SYNC_TAG: usize = usize::MAX;

impl Qcow2Channel {
    pub fn new(
        core: Arc<Core>,
        slow_path: Arc<SlowPath>,
        trims: Arc<Trims>,
        context: &QueueContext,
    ) -> io::Result<Self> {
        let file = core.file.channel(context)?;
        let waker = core.wakers.add(&context.reactor);
        let completions = Arc::new(CompletionQueue::new(waker));
        let pins = core.epochs.register();
        let activity = core.activity.counter();
        Ok(Self {
            core,
            slow_path,
            trims,
            activity,
            reactor: context.reactor.clone(),
            file,
            completions,
            handed_over: 0,
            trims_queued: false,
            pins,
            active: Slab::with_capacity(usize::from(context.depth.0)),
            flushes: Flushes::default(),
            plan: Plan::default(),
            done: Vec::new(),
            completed: Vec::new(),
        })
    }

    fn read(&mut self, mut request: Box<Request>, extent: Extent) {
        let mut meta = self.core.meta();
        if !self.plan.read(&mut meta, extent) {
            drop(meta);
            return self.hand_over(request);
        }
        let epoch = meta.epoch;
        if !self.plan.pieces.is_empty() {
            self.pins.pin(epoch);
        }
        drop(meta);
        for zero in self.plan.zeroes.drain(..) {
            request.fill_zero(zero);
        }
        if self.plan.pieces.is_empty() {
            self.completed.push(Completion { request, outcome: Ok(()) });
            return;
        }
        self.start(request, epoch, |offset, bytes| FileOp::Read { offset, bytes });
    }

    fn write(&mut self, request: Box<Request>, extent: Extent) {
        let mut meta = self.core.meta();
        if !self.plan.write(&mut meta, extent) {
            drop(meta);
            return self.hand_over(request);
        }
        let epoch = meta.epoch;
        self.pins.pin(epoch);
        let low = meta.space.unused_end() < self.core.room_low();
        drop(meta);
        if low && !self.plan.fills.is_empty() {
            self.core.commits.hint_room();
        }
        let durable = false;
        self.start(request, epoch, |offset, bytes| FileOp::Write { offset, bytes, durable });
    }

    /// Submits the pieces of the plan.
    fn start(&mut self, request: Box<Request>, epoch: u64, op: impl Fn(FileOffset, u64) -> FileOp) {
        let pieces = self.plan.pieces.len();
        let fills = std::mem::take(&mut self.plan.fills);
        let whole = request.op.bytes();
        let tag = self.active.insert(ActiveRequest {
            request,
            epoch,
            pieces,
            outcome: Ok(()),
            fills,
            lists: Vec::new(),
        });
        let active = &mut self.active[tag];
        for Piece { at, bytes, offset } in self.plan.pieces.drain(..) {
            let memory = if bytes == whole {
                // SAFETY: the request stays in `active`, its box and list unmoved, until the file
                // request completes; dropping the channel waits for that.
                unsafe { MemoryList::new(&active.request.memory) }
            } else {
                let mut list = Vec::new();
                let range = at as usize..(at + bytes) as usize;
                active.request.for_each_piece(range, |piece| list.push(piece));
                active.lists.push(list.into());
                let list = active.lists.last().expect("just pushed");
                // SAFETY: as above; the boxed list stays where it is when the request moves.
                unsafe { MemoryList::new(list) }
            };
            let op = op(FileOffset::new(offset), bytes);
            self.file.submit(FileRequest { op, memory, tag });
        }
    }

    fn hand_over(&mut self, request: Box<Request>) {
        self.handed_over += 1;
        self.slow_path.submit(request, &self.completions);
    }

    fn finish(&mut self, completion: FileCompletion) {
        if completion.tag == SYNC_TAG {
            let Self { core, file, flushes, .. } = self;
            return flushes.finish_sync(core, &mut **file, completion.outcome);
        }
        let active = &mut self.active[completion.tag];
        active.outcome = active.outcome.and(completion.outcome);
        active.pieces -= 1;
        if active.pieces > 0 {
            return;
        }
        let active = self.active.remove(completion.tag);
        self.pins.unpin(active.epoch);
        self.fill(&active);
        self.complete(Completion { request: active.request, outcome: active.outcome });
    }

    /// The map is to name the clusters that have got their first data.
    fn fill(&mut self, active: &ActiveRequest) {
        if active.fills.is_empty() {
            return;
        }
        let mut meta = self.core.meta();
        let mut ended = false;
        for guest in &active.fills {
            ended |= meta.filled(*guest, active.outcome.is_ok());
        }
        let crowded = meta.is_crowded();
        drop(meta);
        self.core.commits.touch();
        if ended {
            self.core.tell_changed();
        }
        if crowded {
            self.core.commits.ask();
        }
    }

    /// The request is done, but for its durability.
    fn complete(&mut self, completion: Completion) {
        let request = &completion.request;
        let durable = request.durable && request.op.modifies() && completion.outcome.is_ok();
        if durable || request.op == Op::Flush {
            let Self { core, file, flushes, completed, .. } = self;
            flushes.submit(core, &mut **file, completion, completed);
        } else {
            self.completed.push(completion);
        }
    }

    fn kick_trims(&mut self) {
        if std::mem::take(&mut self.trims_queued) {
            self.trims.kick();
        }
    }

    fn collect_from_others(&mut self) {
        for completion in self.completions.take() {
            self.handed_over -= 1;
            self.complete(completion);
        }
    }

    /// Takes what the file has done.
    fn collect_from_file(&mut self) {
        let mut finished = std::mem::take(&mut self.done);
        self.file.reap(&mut finished);
        finished.drain(..).for_each(|completion| self.finish(completion));
        self.done = finished;
    }
}

impl Channel for Qcow2Channel {
    fn submit(&mut self, request: Box<Request>) {
        let promises = request.durable && request.op.modifies() || request.op == Op::Flush;
        let refused = match request.op {
            Op::Flush if self.core.readonly => Some(Ok(())),
            op if self.core.readonly && op.modifies() => Some(Err(Errno::ROFS)),
            _ if promises && self.core.commits.has_failed() => Some(Err(Errno::IO)),
            _ => None,
        };
        if let Some(outcome) = refused {
            self.completed.push(Completion { request, outcome });
            return;
        }
        if !matches!(request.op, Op::Discard(_)) {
            self.activity.count();
        }
        let deallocate = self.core.discard == DiscardMode::Deallocate;
        match request.op {
            Op::Read(extent) => self.read(request, extent),
            Op::Write(extent) => self.write(request, extent),
            Op::Flush => self.complete(Completion { request, outcome: Ok(()) }),
            Op::Discard(_) | Op::WriteZeroes { unmap: true, .. } if deallocate => {
                self.handed_over += 1;
                self.trims_queued = true;
                self.trims.submit(request, &self.completions);
            }
            Op::Discard(_) => self.completed.push(Completion { request, outcome: Ok(()) }),
            Op::WriteZeroes { .. } => self.hand_over(request),
        }
    }

    fn kick(&mut self) {
        self.kick_trims();
        self.file.kick();
    }

    fn reap(&mut self, done: &mut Vec<Completion>) {
        self.collect_from_file();
        if self.completions.has_completions() {
            self.collect_from_others();
        }
        self.flushes.collect(&self.core, &mut self.completed);
        if self.flushes.take_started() {
            self.file.kick();
        }
        done.append(&mut self.completed);
    }

    fn next_look(&mut self) -> NextLook {
        self.kick_trims();
        let has_something = !self.completed.is_empty()
            || self.completions.has_completions()
            || self.flushes.can_advance(&self.core);
        NextLook::now_if(has_something).min(self.file.next_look())
    }
}

impl Drop for Qcow2Channel {
    /// Waits for what is on its way: it uses the requests' memory, and others wait for its claims.
    fn drop(&mut self) {
        while !self.active.is_empty() || self.handed_over > 0 || self.flushes.is_leading() {
            self.completed.clear();
            let reactor = self.reactor.clone();
            reactor.sleep(|| self.next_look());
            let mut done = Vec::new();
            self.reap(&mut done);
        }
    }
}
