//! A record that is being made, in flight, or waiting to commit.

use flowstone_block::{Errno, IoVec};

use super::super::address::{Address, MapEntry};
use super::super::core::Core;
use super::super::ids::Sequence;
use super::super::record_builder::RecordBuilder;
use super::super::shape::Shape;
use super::write_queue::Start;

/// A stretch of a guest write that a record carries.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// The write, in the queue's slab.
    pub write: usize,
    /// The first block of the stretch.
    pub first: u64,
}

/// A record of this queue.
pub struct PendingRecord {
    pub content: RecordBuilder,
    pub memory: [IoVec; 1],
    pub shares: Vec<Share>,
    /// Blocks whose rest was read, with the map entries they were read with.
    pub expected: Vec<(u64, MapEntry)>,
    pub stream: usize,
    /// Blocks that trims in it cover.
    pub trimmed: u64,
    /// Whether everything in it is of a guest's journal.
    pub only_journal: bool,
    pub sequence: Sequence,
    pub address: Address,
    /// While it is being written.
    pub start: Option<Start>,
    /// In the file; waits for the records before it.
    pub written: bool,
    /// Why it could not be written.
    pub failure: Option<Errno>,
}

impl PendingRecord {
    pub fn new(shape: Shape) -> Box<Self> {
        Box::new(Self {
            content: RecordBuilder::new(shape.record_payload_max()),
            // SAFETY: an empty piece names nothing.
            memory: [unsafe { IoVec::new(std::ptr::null_mut(), 0) }],
            shares: Vec::new(),
            expected: Vec::new(),
            stream: 0,
            trimmed: 0,
            only_journal: true,
            sequence: Sequence::default(),
            address: Address::NOWHERE,
            start: None,
            written: false,
            failure: None,
        })
    }

    /// Empties it for another use.
    pub fn clear(&mut self) {
        self.content.clear();
        self.shares.clear();
        self.expected.clear();
        self.trimmed = 0;
        self.only_journal = true;
        self.written = false;
        self.failure = None;
    }

    /// Whether it unmaps blocks and brings none.
    pub const fn only_trims(&self) -> bool {
        self.content.payload() == 0
    }

    /// Whether it has committed, or never will.
    pub fn has_ended(&self, core: &Core) -> bool {
        self.written && (core.has_committed(self.sequence) || core.is_broken())
    }
}
