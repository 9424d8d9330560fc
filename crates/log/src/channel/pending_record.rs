//! A record that is being assembled, in flight, or waiting to commit.

use flowstone_block::{Class, Errno, IoVec, mutant};
use flowstone_log_format::{Address, MapEntry, RecordBuilder, Sequence, Shape};

use super::super::log::Log;
use super::device::Start;

/// A part of a guest write that a record carries.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// Index of the write in the queue's slab.
    pub write: usize,
    /// First block of the part.
    pub first: u64,
}

/// A record of this queue.
pub struct PendingRecord {
    pub content: RecordBuilder,
    /// Whether it lies in memory for large records.
    pub is_large: bool,
    pub memory: [IoVec; 1],
    pub shares: Vec<Share>,
    /// Partial blocks, and the map entries with which their rest was read.
    pub expected: Vec<(u64, MapEntry)>,
    pub stream: usize,
    /// Number of blocks that its trims cover.
    pub trimmed: u64,
    /// Whether all its data is from a guest's journal.
    pub only_journal: bool,
    pub sequence: Sequence,
    pub address: Address,
    /// Start of its write, while that is in flight.
    pub start: Option<Start>,
    /// Written; waits for the records before it.
    pub written: bool,
    /// Error of its write.
    pub failure: Option<Errno>,
}

impl PendingRecord {
    pub fn new(content: RecordBuilder, is_large: bool) -> Box<Self> {
        Box::new(Self {
            content,
            is_large,
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

    /// Empties the record for reuse.
    pub fn clear(&mut self) {
        self.content.clear();
        self.shares.clear();
        self.expected.clear();
        self.trimmed = 0;
        self.only_journal = true;
        self.written = false;
        self.failure = None;
    }

    /// Returns whether a request of this class may go into this record: the first request
    /// determines its stream and, with `journals_apart`, whether it holds journal writes only.
    pub fn suits(&mut self, class: Class, shape: Shape, journals_apart: bool) -> bool {
        let stream = stream_of(class, shape);
        if self.shares.is_empty() || mutant("log.gather.mixes-classes") {
            self.stream = stream;
        }
        let mixes = journals_apart
            && !self.shares.is_empty()
            && self.only_journal != (class == Class::Journal)
            && !mutant("log.gather.mixes-journals-with-others");
        self.stream == stream && !mixes
    }

    /// Returns whether it only unmaps blocks, without data.
    pub const fn only_trims(&self) -> bool {
        self.content.payload() == 0
    }

    /// Returns whether it has committed, or never will.
    pub fn has_ended(&self, log: &Log) -> bool {
        self.written && (log.has_committed(self.sequence) || log.is_broken())
    }
}

fn stream_of(class: Class, shape: Shape) -> usize {
    let metadata = matches!(class, Class::Metadata | Class::Journal);
    usize::from(metadata && shape.streams > 1)
}
