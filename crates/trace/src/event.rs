//! The events of a trace.

use std::ops::Range;
use std::time::Duration;

/// Block size of policies and models.
const BLOCK_BYTES: u64 = 4096;

/// Kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A read.
    Read,
    /// A write.
    Write,
    /// A flush: makes completed writes durable.
    Flush,
    /// A discard.
    Discard,
    /// Zeroes a range.
    WriteZeroes,
    /// A read or a write: the trace does not say which.
    Access,
    /// No request: the range held data when the trace began.
    Present,
}

/// Class of a request's data, as far as the recording daemon knew it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// File contents, or unknown.
    Data,
    /// Metadata of a file system.
    Metadata,
    /// A file system's journal.
    Journal,
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Time since some moment; absent if the format has no times.
    pub at: Option<Duration>,
    /// Kind of the request.
    pub kind: Kind,
    /// Offset in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Class of the data, if the trace has it.
    pub class: Option<Class>,
    /// Whether it had to be durable before it completed.
    pub durable: bool,
}

impl Event {
    /// Makes an event without further information.
    pub const fn new(kind: Kind, offset: u64, bytes: u64) -> Self {
        Self { at: None, kind, offset, bytes, class: None, durable: false }
    }

    /// Returns the numbers of the blocks of 4 KiB that its range touches.
    pub const fn blocks(&self) -> Range<u64> {
        let first = self.offset / BLOCK_BYTES;
        let end = (self.offset + self.bytes).div_ceil(BLOCK_BYTES);
        first..if end > first { end } else { first }
    }
}

/// A named part of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Phase {
    /// Name; several phases may have the same one.
    pub name: String,
    /// Index of its first event.
    pub first: usize,
}

/// The requests of a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// Events in the order of the trace.
    pub events: Vec<Event>,
    /// Phases in the same order, if the trace has them. Each one ends where the next one begins.
    pub phases: Vec<Phase>,
    /// Size of the disk in bytes when the trace began, if the trace has it. It may have grown
    /// since.
    pub size: Option<u64>,
    /// Number of lost requests, as stated in the trace.
    pub lost: u64,
    /// Whether its end is missing.
    pub is_cut: bool,
    /// Number of requests according to its last line, if there are others.
    pub miscounted: Option<u64>,
}

impl Trace {
    /// Returns the end of the last range: the least size of the disk.
    pub fn end(&self) -> u64 {
        self.events.iter().map(|event| event.offset + event.bytes).max().unwrap_or(0)
    }

    /// Returns messages about missing parts.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.lost > 0 {
            warnings.push(format!("it lacks {} requests that its recorder lost", self.lost));
        }
        if self.is_cut {
            warnings.push("its end is missing; what there is of it is used".into());
        }
        if let Some(counted) = self.miscounted {
            let requests = self.events.iter().filter(|event| event.kind != Kind::Present).count();
            warnings.push(format!("its last line counts {counted} requests, there are {requests}"));
        }
        warnings
    }
}
