//! One queue of a qcow2 image. Requests that need only tables in memory are carried out here, in
//! the queue's own ring: reads of data and zeroes, and from the backing file, writes in place, and
//! writes to clean clusters. All other requests go to the [`SlowPath`], which may block.

mod backing;
mod flushes;
mod plan;

#[cfg(test)]
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use flowstone_block::{
    Channel, Class, Completion, Errno, Extent, IoVec, NextLook, Op, Outcome, QueueContext, Reactor,
    Request, SECTOR_BYTES, Sector, SectorCount, mutated,
};
use flowstone_fileio::{FileChannel, FileCompletion, FileOffset, FileOp, FileRequest, MemoryList};
use flowstone_image::DiscardMode;
#[cfg(test)]
use flowstone_image::Wait;
use flowstone_image::runtime::completion_queue::CompletionQueue;
use flowstone_image::runtime::pace::ActivityCounter;
use flowstone_image::runtime::trims::Trims;
use flowstone_image::runtime::wakers::QueueWaker;
use slab::Slab;

use self::backing::BackingReads;
use self::flushes::Flushes;
use self::plan::{Piece, Plan};
use super::core::Core;
use super::epochs::EpochPins;
use super::shape::GuestCluster;
use super::slow_path::SlowPath;

/// One queue's way into a qcow2 image.
pub struct Qcow2Channel {
    core: Arc<Core>,
    slow_path: Arc<SlowPath>,
    trims: Arc<Trims>,
    activity: Arc<ActivityCounter>,
    reactor: Reactor,
    waker: Arc<QueueWaker>,
    file: Box<dyn FileChannel>,
    backing: Option<BackingReads>,
    /// Completions of requests that were handed over.
    completions: Arc<CompletionQueue>,
    /// Number of requests that were handed over.
    handed_over: usize,
    /// Whether the discarding thread has yet to be woken.
    trims_queued: bool,
    pins: EpochPins,
    active: Slab<ActiveRequest>,
    flushes: Flushes,
    /// Reused for each request.
    plan: Plan,
    done: Vec<FileCompletion>,
    /// Requests ready to be returned.
    completed: Vec<Completion>,
}

/// A request with transfers in flight.
struct ActiveRequest {
    request: Box<Request>,
    /// Epoch in which it read the map.
    epoch: u64,
    /// Number of transfers in flight.
    transfers: usize,
    outcome: Outcome,
    /// Clusters that it fills for the first time.
    fills: Vec<GuestCluster>,
    /// Memory lists of the pieces, where there are several.
    lists: Vec<Box<[IoVec]>>,
}

/// Tag of the file's sync, which serves several requests.
const SYNC_TAG: usize = usize::MAX;

impl Qcow2Channel {
    pub fn new(
        core: Arc<Core>,
        slow_path: Arc<SlowPath>,
        trims: Arc<Trims>,
        context: &QueueContext,
    ) -> io::Result<Self> {
        let file = core.file.channel(context)?;
        let backing = BackingReads::open(&core, context)?;
        let waker = core.wakers.add(&context.reactor);
        let completions = Arc::new(CompletionQueue::new(Arc::clone(&waker)));
        let pins = core.epochs.register();
        let activity = core.activity.counter();
        Ok(Self {
            core,
            slow_path,
            trims,
            activity,
            reactor: context.reactor.clone(),
            waker,
            file,
            backing,
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

    /// Returns the states in which its requests wait; a request that was handed over waits for one
    /// of two threads.
    #[cfg(test)]
    pub fn waits(&self) -> BTreeSet<Wait> {
        #[rustfmt::skip]
        let Self {
            active, handed_over, flushes,
            // Handles to other parts, and finished requests.
            core: _, slow_path: _, trims: _, activity: _, reactor: _, waker: _, file: _, backing: _, completions: _,
            trims_queued: _, pins: _, plan: _, done: _, completed: _,
        } = self;
        let [commit, sync] = flushes.waits();
        let handed_over = *handed_over > 0;
        let states = [(Wait::Discard, handed_over), (Wait::SlowPath, handed_over)];
        let states = states.into_iter().chain([(Wait::Host, !active.is_empty()), commit, sync]);
        states.filter(|(_, holds)| *holds).map(|(wait, _)| wait).collect()
    }

    fn read(&mut self, mut request: Box<Request>, extent: Extent) {
        let mut meta = self.core.meta();
        if !self.plan.read(&mut meta, extent) {
            drop(meta);
            return self.hand_over(request);
        }
        let transfers = self.plan.transfers();
        let epoch = match transfers {
            0 => {
                drop(meta);
                0
            }
            _ => self.pins.hold(meta.epoch, meta),
        };
        for zero in self.plan.zeroes.drain(..) {
            request.fill_zero(zero);
        }
        if transfers == 0 {
            self.completed.push(Completion { request, outcome: Ok(()) });
            return;
        }
        let tag = self.start(request, epoch, |offset, bytes| FileOp::Read { offset, bytes });
        self.start_below(tag, extent);
    }

    fn write(&mut self, request: Box<Request>, extent: Extent) {
        let mut meta = self.core.meta();
        if !self.plan.write(&mut meta, extent) {
            drop(meta);
            return self.hand_over(request);
        }
        let low = meta.space.unused_end() < self.core.room_low();
        let epoch = self.pins.hold(meta.epoch, meta);
        if low && !self.plan.fills.is_empty() {
            self.core.commits.hint_room();
        }
        let durable = false;
        self.start(request, epoch, |offset, bytes| FileOp::Write { offset, bytes, durable });
    }

    /// Submits the pieces of the plan. Returns the tag of the active request.
    fn start(
        &mut self,
        request: Box<Request>,
        epoch: u64,
        op: impl Fn(FileOffset, u64) -> FileOp,
    ) -> usize {
        let transfers = self.plan.transfers();
        let fills = std::mem::take(&mut self.plan.fills);
        let whole = request.op.bytes();
        let tag = self.active.insert(ActiveRequest {
            request,
            epoch,
            transfers,
            outcome: Ok(()),
            fills,
            lists: Vec::new(),
        });
        let active = &mut self.active[tag];
        let is_journal = active.request.class == Class::Journal;
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
            self.file
                .submit(FileRequest::new(op, memory, tag).dont_cache(is_journal).first(is_journal));
        }
        tag
    }

    /// Submits the parts of a read of `extent` that the plan leaves to the backing file.
    fn start_below(&mut self, tag: usize, extent: Extent) {
        let Self { plan, backing, active, .. } = self;
        for range in plan.below.drain(..) {
            let backing = backing.as_mut().expect("the map knows that there is one");
            let start = Sector::new((extent.start_bytes() + range.start) / SECTOR_BYTES);
            let count = SectorCount::new((range.end - range.start) / SECTOR_BYTES);
            let part = Extent::new(start, count).expect("part of a request, not empty");
            let memory = range.start as usize..range.end as usize;
            backing.submit(&active[tag].request, part, memory, tag as u32);
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
        self.finish_transfer(completion.tag, completion.outcome);
    }

    fn finish_transfer(&mut self, tag: usize, outcome: Outcome) {
        let active = &mut self.active[tag];
        active.outcome = active.outcome.and(outcome);
        active.transfers -= 1;
        if active.transfers > 0 {
            return;
        }
        let active = self.active.remove(tag);
        self.pins.unpin(active.epoch);
        self.fill(&active);
        self.complete(Completion { request: active.request, outcome: active.outcome });
    }

    /// Maps the clusters that were filled for the first time.
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

    /// Completes a request, unless it has to be made durable first.
    fn complete(&mut self, completion: Completion) {
        let request = &completion.request;
        let durable = request.durable && request.op.modifies() && completion.outcome.is_ok();
        if durable || request.op == Op::Flush {
            let Self { core, file, flushes, waker, completed, .. } = self;
            flushes.submit(core, &mut **file, completion, waker, completed);
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

    /// Collects completions of the file.
    fn collect_from_file(&mut self) {
        let mut finished = std::mem::take(&mut self.done);
        self.file.reap(&mut finished);
        finished.drain(..).for_each(|completion| self.finish(completion));
        self.done = finished;
    }

    /// Collects completions of the backing file.
    fn collect_from_backing(&mut self) {
        if let Some(mut backing) = self.backing.take() {
            backing.reap(|tag, outcome| self.finish_transfer(tag as usize, outcome));
            self.backing = Some(backing);
        }
    }
}

impl Channel for Qcow2Channel {
    fn submit(&mut self, request: Box<Request>) {
        let promises = request.durable && request.op.modifies() || request.op == Op::Flush;
        let refused = match request.op {
            Op::Flush if self.core.readonly => Some(Ok(())),
            op if self.core.readonly && op.modifies() => Some(Err(Errno::ROFS)),
            _ if promises && self.core.has_failed() => Some(Err(Errno::IO)),
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
        if let Some(backing) = &mut self.backing {
            backing.kick();
        }
    }

    fn reap(&mut self, done: &mut Vec<Completion>) {
        self.collect_from_file();
        self.collect_from_backing();
        if self.completions.has_completions() {
            self.collect_from_others();
        }
        self.flushes.collect(&self.core, &mut *self.file, &mut self.completed);
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
        let backing = self.backing.as_mut().map_or(NextLook::OnWake, BackingReads::next_look);
        NextLook::now_if(has_something).min(self.file.next_look()).min(backing)
    }

    fn retire(&mut self) -> bool {
        let leaves = mutated("qcow2.retire.goes-on-leading", true, false);
        if leaves {
            self.flushes.leave();
        }
        self.reap(&mut Vec::new());
        let is_idle = mutated("qcow2.retire.does-not-ask-its-file", self.file.is_idle(), true);
        let is_at_work = !self.active.is_empty() || self.handed_over > 0;
        let has_some = is_at_work || self.flushes.is_leading() || !is_idle;
        let is_alone = mutated("qcow2.channel.retires-while-it-leads", !has_some, true);
        is_alone && self.backing.as_mut().is_none_or(BackingReads::retire)
    }
}

impl Drop for Qcow2Channel {
    /// Waits for transfers in flight: they use the requests' memory, and others wait for its
    /// claims.
    fn drop(&mut self) {
        self.flushes.leave();
        while !self.active.is_empty() || self.handed_over > 0 || self.flushes.is_leading() {
            self.completed.clear();
            let reactor = self.reactor.clone();
            reactor.sleep(|| self.next_look());
            let mut done = Vec::new();
            self.reap(&mut done);
        }
    }
}
