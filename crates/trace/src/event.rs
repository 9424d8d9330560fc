//! One request of a trace.

use std::ops::Range;
use std::time::Duration;

/// What policies and models count in.
const BLOCK_BYTES: u64 = 4096;

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// To read a range.
    Read,
    /// To write a range.
    Write,
    /// To make what has been written durable.
    Flush,
    /// To give a range up.
    Discard,
    /// To make a range read as zeroes.
    WriteZeroes,
    /// To read or to write a range: the trace does not say which.
    Access,
    /// Nothing: the range held data when the trace began.
    Present,
}

/// What kind of data a request carried, as far as the recording daemon knew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// File contents, or not known.
    Data,
    /// Metadata of a file system.
    Metadata,
    /// A file system's journal.
    Journal,
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When, since some moment; absent where the format has no times.
    pub at: Option<Duration>,
    /// What.
    pub kind: Kind,
    /// Where, in bytes.
    pub offset: u64,
    /// How much, in bytes.
    pub bytes: u64,
    /// What kind of data, if the trace says so.
    pub class: Option<Class>,
    /// Whether it had to be durable before it completed.
    pub durable: bool,
}

impl Event {
    /// One of which no more is known.
    pub const fn new(kind: Kind, offset: u64, bytes: u64) -> Self {
        Self { at: None, kind, offset, bytes, class: None, durable: false }
    }

    /// Numbers of the blocks of 4 KiB that its range shares a byte with.
    pub const fn blocks(&self) -> Range<u64> {
        let first = self.offset / BLOCK_BYTES;
        let end = (self.offset + self.bytes).div_ceil(BLOCK_BYTES);
        first..if end > first { end } else { first }
    }
}

/// A part of a trace that has a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Phase {
    /// What it is called; several may have the same name.
    pub name: String,
    /// The number of the event that it begins with.
    pub first: usize,
}

/// All that a disk was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// In the order of the trace.
    pub events: Vec<Event>,
    /// Its parts, if it says so, in the same order. Each one ends where the next one begins.
    pub phases: Vec<Phase>,
    /// Bytes of the disk when the trace began, if the trace says so. It may have grown since.
    pub size: Option<u64>,
    /// Requests that the trace lacks, as it says itself.
    pub lost: u64,
    /// Whether its end is missing.
    pub is_cut: bool,
}

impl Trace {
    /// Where the last range ends: the least that the disk has.
    pub fn end(&self) -> u64 {
        self.events.iter().map(|event| event.offset + event.bytes).max().unwrap_or(0)
    }

    /// What is missing of it, for messages.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.lost > 0 {
            warnings.push(format!("it lacks {} requests that its recorder lost", self.lost));
        }
        if self.is_cut {
            warnings.push("its end is missing; what there is of it is used".into());
        }
        warnings
    }
}
