//! Reads of a queue from the backing file: separate requests, straight into the guest's memory.

use std::io;
use std::ops::Range;

use flowstone_block::{Channel, Completion, Extent, NextLook, Op, Outcome, QueueContext, Request};

use super::super::core::Core;

/// Maximum capacity of the memory list of a spare request. A guest may send longer lists, but not
/// make us keep them.
const PIECES_KEPT: usize = 128;

/// A queue of the backing file.
#[expect(clippy::vec_box, reason = "requests travel as boxes: a move is a pointer")]
pub struct BackingReads {
    channel: Box<dyn Channel>,
    /// Requests for reuse, at most as many as the queue depth.
    spare: Vec<Box<Request>>,
    depth: usize,
    done: Vec<Completion>,
}

impl BackingReads {
    /// Opens a queue of the backing file, if the image has one.
    pub fn open(core: &Core, context: &QueueContext) -> io::Result<Option<Self>> {
        let Some(backing) = core.backing.as_deref() else { return Ok(None) };
        let channel = backing.channel(context)?;
        let depth = usize::from(context.depth.0);
        Ok(Some(Self { channel, spare: Vec::new(), depth, done: Vec::new() }))
    }

    /// Reads `extent` into this range of the memory of `whole`, which must stay valid until
    /// [`reap`](Self::reap) returns `tag`.
    pub fn submit(&mut self, whole: &Request, extent: Extent, memory: Range<usize>, tag: u32) {
        let mut part = self.spare.pop().unwrap_or_else(|| Request::new(Op::Flush, tag));
        part.inherit(whole, Op::Read(extent));
        part.tag = tag;
        part.memory.clear();
        whole.for_each_piece(memory, |piece| part.memory.push(piece));
        self.channel.submit(part);
    }

    pub fn kick(&mut self) {
        self.channel.kick();
    }

    /// Calls `finish` with the tag and the outcome of each completed part.
    pub fn reap(&mut self, mut finish: impl FnMut(u32, Outcome)) {
        self.channel.reap(&mut self.done);
        for Completion { request, outcome } in self.done.drain(..) {
            finish(request.tag, outcome);
            if self.spare.len() < self.depth && request.memory.capacity() <= PIECES_KEPT {
                self.spare.push(request);
            }
        }
    }

    pub fn next_look(&mut self) -> NextLook {
        self.channel.next_look()
    }

    /// See [`Channel::retire`].
    pub fn retire(&mut self) -> bool {
        self.channel.retire()
    }
}
