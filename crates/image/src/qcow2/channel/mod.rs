//! One queue of a qcow2 image. What needs no more than a look at tables in memory is carried out
//! here, in the queue's own ring: reads of data and zeroes, writes in place, and writes to clusters
//! that have had nothing in them. Everything else goes to the [`Lane`], which may block.

mod flushes;
mod plan;

use std::io;
use std::sync::Arc;

use flowstone_block::{
    Channel, Completion, Doorbells, Errno, Extent, IoVec, Op, Outcome, QueueDepth, Request,
};
use flowstone_fileio::{FileChannel, FileCompletion, FileOffset, FileOp, FileRequest, MemoryList};
use slab::Slab;

use self::flushes::Flushes;
use self::plan::{Piece, Plan};
use super::core::Core;
use super::flights::FlightLog;
use super::lane::Lane;
use super::shape::GuestCluster;
use crate::DiscardMode;
use crate::mailbox::Mailbox;
use crate::pace::Pulse;
use crate::trims::Trims;
use crate::waker::Waker;

/// One queue's way into a qcow2 image.
pub struct Qcow2Channel {
    core: Arc<Core>,
    lane: Arc<Lane>,
    trims: Arc<Trims>,
    pulse: Arc<Pulse>,
    waker: Arc<Waker>,
    file: Box<dyn FileChannel>,
    /// Where others put what they have done for us.
    mailbox: Arc<Mailbox>,
    /// Requests that others have.
    handed_over: usize,
    /// Whether the thread that discards has yet to be told.
    trims_queued: bool,
    log: FlightLog,
    flights: Slab<Flight>,
    flushes: Flushes,
    /// Used again for each request.
    plan: Plan,
    done: Vec<FileCompletion>,
    /// Requests that are done.
    settled: Vec<Completion>,
}

/// A request that file requests are on their way for.
struct Flight {
    request: Box<Request>,
    /// When it looked into the map.
    generation: u64,
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
        lane: Arc<Lane>,
        trims: Arc<Trims>,
        depth: QueueDepth,
    ) -> io::Result<Self> {
        let file = core.file.channel(depth)?;
        let waker = core.new_waker()?;
        let mailbox = Arc::new(Mailbox::new(Arc::clone(&waker)));
        let log = core.flights.log();
        let pulse = core.activity.join();
        Ok(Self {
            core,
            lane,
            trims,
            pulse,
            waker,
            file,
            mailbox,
            handed_over: 0,
            trims_queued: false,
            log,
            flights: Slab::with_capacity(usize::from(depth.0)),
            flushes: Flushes::default(),
            plan: Plan::default(),
            done: Vec::new(),
            settled: Vec::new(),
        })
    }

    fn read(&mut self, mut request: Box<Request>, extent: Extent) {
        let mut meta = self.core.meta();
        if !self.plan.read(&mut meta, extent) {
            drop(meta);
            return self.hand_over(request);
        }
        let generation = meta.generation;
        if !self.plan.pieces.is_empty() {
            self.log.enter(generation);
        }
        drop(meta);
        for zero in self.plan.zeroes.drain(..) {
            request.fill_zero(zero);
        }
        if self.plan.pieces.is_empty() {
            self.settled.push(Completion { request, outcome: Ok(()) });
            return;
        }
        self.start(request, generation, |offset, bytes| FileOp::Read { offset, bytes });
    }

    fn write(&mut self, request: Box<Request>, extent: Extent) {
        let mut meta = self.core.meta();
        if !self.plan.write(&mut meta, extent) {
            drop(meta);
            return self.hand_over(request);
        }
        let generation = meta.generation;
        self.log.enter(generation);
        let low = meta.space.unused_end() < self.core.room_low();
        drop(meta);
        if low && !self.plan.fills.is_empty() {
            self.core.commits.hint_room();
        }
        let durable = false;
        self.start(request, generation, |offset, bytes| FileOp::Write { offset, bytes, durable });
    }

    /// Submits the pieces of the plan.
    fn start(
        &mut self,
        request: Box<Request>,
        generation: u64,
        op: impl Fn(FileOffset, u64) -> FileOp,
    ) {
        let pieces = self.plan.pieces.len();
        let fills = std::mem::take(&mut self.plan.fills);
        let whole = request.op.bytes();
        let tag = self.flights.insert(Flight {
            request,
            generation,
            pieces,
            outcome: Ok(()),
            fills,
            lists: Vec::new(),
        });
        let flight = &mut self.flights[tag];
        for Piece { at, bytes, offset } in self.plan.pieces.drain(..) {
            let memory = if bytes == whole {
                // SAFETY: the request stays in `flights`, its box and list unmoved, until the file
                // request completes; dropping the channel waits for that.
                unsafe { MemoryList::new(&flight.request.memory) }
            } else {
                let mut list = Vec::new();
                let range = at as usize..(at + bytes) as usize;
                flight.request.for_each_piece(range, |piece| list.push(piece));
                flight.lists.push(list.into());
                let list = flight.lists.last().expect("just pushed");
                // SAFETY: as above; the boxed list stays where it is when the flight moves.
                unsafe { MemoryList::new(list) }
            };
            let op = op(FileOffset::new(offset), bytes);
            self.file.submit(FileRequest { op, memory, tag });
        }
    }

    fn hand_over(&mut self, request: Box<Request>) {
        self.handed_over += 1;
        self.lane.submit(request, &self.mailbox);
    }

    fn finish(&mut self, completion: FileCompletion) {
        if completion.tag == SYNC_TAG {
            let Self { core, file, flushes, settled, .. } = self;
            return flushes.finish_sync(core, &mut **file, completion.outcome, settled);
        }
        let flight = &mut self.flights[completion.tag];
        flight.outcome = flight.outcome.and(completion.outcome);
        flight.pieces -= 1;
        if flight.pieces > 0 {
            return;
        }
        let flight = self.flights.remove(completion.tag);
        self.log.leave(flight.generation);
        self.fill(&flight);
        self.complete(Completion { request: flight.request, outcome: flight.outcome });
    }

    /// The map is to name the clusters that have got their first data.
    fn fill(&mut self, flight: &Flight) {
        if flight.fills.is_empty() {
            return;
        }
        let mut meta = self.core.meta();
        let mut ended = false;
        for guest in &flight.fills {
            ended |= meta.filled(*guest, flight.outcome.is_ok());
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
            let Self { core, file, flushes, settled, .. } = self;
            flushes.submit(core, &mut **file, completion, settled);
        } else {
            self.settled.push(completion);
        }
    }

    fn kick_trims(&mut self) {
        if std::mem::take(&mut self.trims_queued) {
            self.trims.kick();
        }
    }

    fn collect_from_others(&mut self) {
        for completion in self.mailbox.take() {
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
            self.settled.push(Completion { request, outcome });
            return;
        }
        if !matches!(request.op, Op::Discard(_)) {
            self.pulse.beat();
        }
        let deallocate = self.core.discard == DiscardMode::Deallocate;
        match request.op {
            Op::Read(extent) => self.read(request, extent),
            Op::Write(extent) => self.write(request, extent),
            Op::Flush => self.complete(Completion { request, outcome: Ok(()) }),
            Op::Discard(_) | Op::WriteZeroes { unmap: true, .. } if deallocate => {
                self.handed_over += 1;
                self.trims_queued = true;
                self.trims.submit(request, &self.mailbox);
            }
            Op::Discard(_) => self.settled.push(Completion { request, outcome: Ok(()) }),
            Op::WriteZeroes { .. } => self.hand_over(request),
        }
    }

    fn kick(&mut self) {
        self.kick_trims();
        self.file.kick();
    }

    fn reap(&mut self, done: &mut Vec<Completion>) {
        self.collect_from_file();
        if self.mailbox.has_mail() {
            self.collect_from_others();
        }
        self.flushes.collect(&self.core, &mut self.settled);
        if self.flushes.take_started() {
            self.file.kick();
        }
        done.append(&mut self.settled);
    }

    fn sleep(&mut self, bells: &Doorbells<'_>) {
        self.kick_trims();
        if !self.settled.is_empty() {
            self.file.kick();
            return;
        }
        let Self { core, waker, mailbox, flushes, file, .. } = self;
        let has_news = || mailbox.has_mail() || flushes.has_news(core);
        if !waker.sleep(bells, has_news, |bells| file.sleep(bells)) {
            file.kick();
        }
    }
}

impl Drop for Qcow2Channel {
    /// Waits for what is on its way: it uses the requests' memory, and others wait for its claims.
    fn drop(&mut self) {
        while !self.flights.is_empty() || self.handed_over > 0 || self.flushes.is_syncing() {
            self.settled.clear();
            self.sleep(&Doorbells { fds: &[], deadline: None });
            let mut done = Vec::new();
            self.reap(&mut done);
        }
    }
}
