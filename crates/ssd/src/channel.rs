//! The channel of a queue to a file on the drive.

use std::collections::VecDeque;
use std::sync::Arc;

use flowstone_block::{Errno, NextLook, gather, scatter};
use flowstone_fileio::{FileChannel, FileCompletion, FileOffset, FileOp, FileRequest};

use crate::place::Place;
use crate::shared::Shared;

/// A channel to a file on the drive. A request takes effect when it is started; it completes when
/// the drive would complete it.
pub struct SsdChannel {
    shared: Arc<Shared>,
    place: Arc<Place>,
    submitted: Vec<FileRequest>,
    /// Started requests with their completion times, in order.
    started: VecDeque<(u64, FileCompletion)>,
    memory: Vec<u8>,
}

impl SsdChannel {
    pub(crate) fn new(shared: Arc<Shared>, place: Arc<Place>) -> Self {
        let (submitted, started, memory) = Default::default();
        Self { shared, place, submitted, started, memory }
    }

    fn start(&mut self, request: &FileRequest) {
        let done = self.carry_out(request);
        let (at, outcome) = match done {
            Ok(at) => (at, Ok(())),
            Err(errno) => (self.shared.time.passed(), Err(errno)),
        };
        // Requests of different files may overtake each other, but those of one queue are in order.
        let at = self.started.back().map_or(at, |(before, _)| at.max(*before));
        self.started.push_back((at, FileCompletion::new(request.tag, outcome)));
    }

    fn carry_out(&mut self, request: &FileRequest) -> Result<u64, Errno> {
        let pieces = request.memory.pieces();
        let held: usize = pieces.iter().map(|piece| piece.bytes()).sum();
        let (shared, place) = (&self.shared, &self.place);
        let mut state = shared.state();
        let range = |offset: FileOffset, bytes: u64| {
            let first = place.offset() + offset.get();
            let is_inside =
                offset.get().checked_add(bytes).is_some_and(|it| it <= place.bytes_max());
            if is_inside { Ok((first, first + bytes)) } else { Err(Errno::NOSPC) }
        };
        match request.op {
            FileOp::Read { bytes, .. } | FileOp::Write { bytes, .. } if bytes != held as u64 => {
                Err(Errno::INVAL)
            }
            FileOp::Read { offset, bytes } => {
                if offset.get() + bytes > place.size() {
                    return Err(Errno::IO);
                }
                let (first, _) = range(offset, bytes)?;
                self.memory.resize(held, 0);
                let done = state.read(first, &mut self.memory);
                scatter(&self.memory, pieces, 0);
                Ok(done)
            }
            FileOp::Write { .. } if request.write_stream > state.options.streams => {
                Err(Errno::INVAL)
            }
            FileOp::Write { offset, bytes, .. } => {
                let (first, _) = range(offset, bytes)?;
                self.memory.resize(held, 0);
                gather(pieces, 0, &mut self.memory);
                place.grow(offset.get() + bytes);
                Ok(state.write(first, &self.memory, request.write_stream, offset))
            }
            FileOp::Datasync => Ok(state.command()),
            FileOp::Punch { offset, bytes } | FileOp::Discard { offset, bytes } => {
                let (first, end) = range(offset, bytes)?;
                Ok(state.punch(first..end))
            }
            FileOp::Clear { offset, bytes } => {
                let (first, end) = range(offset, bytes)?;
                state.clear(first..end);
                Ok(shared.time.passed())
            }
            FileOp::Zero { offset, bytes } | FileOp::Allocate { offset, bytes } => {
                let (first, end) = range(offset, bytes)?;
                if matches!(request.op, FileOp::Zero { .. }) {
                    state.clear(first..end);
                }
                state.allocate(place.blocks(offset.get()..offset.get() + bytes));
                place.grow(offset.get() + bytes);
                Ok(shared.time.passed())
            }
        }
    }
}

impl FileChannel for SsdChannel {
    fn submit(&mut self, request: FileRequest) {
        self.submitted.push(request);
    }

    fn kick(&mut self) {
        let mut submitted = std::mem::take(&mut self.submitted);
        for request in submitted.drain(..) {
            self.start(&request);
        }
        self.submitted = submitted;
    }

    fn reap(&mut self, done: &mut Vec<FileCompletion>) {
        let now = self.shared.time.passed();
        while let Some((_, completion)) = self.started.pop_front_if(|(at, _)| *at <= now) {
            done.push(completion);
        }
    }

    /// Starts submitted requests. A caller that is about to sleep advances the time, or lets others
    /// run.
    fn next_look(&mut self) -> NextLook {
        self.kick();
        let next = self.started.front().map(|(at, _)| *at);
        if next.is_some_and(|at| at <= self.shared.time.passed()) {
            return NextLook::Now;
        }
        let until = next.map(|at| self.shared.time.at(at));
        match self.shared.time.wait(until) {
            true => NextLook::Now,
            false => until.map_or(NextLook::OnWake, NextLook::At),
        }
    }

    fn is_idle(&self) -> bool {
        self.submitted.is_empty() && self.started.is_empty()
    }
}
