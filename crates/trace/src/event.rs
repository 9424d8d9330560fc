//! One request of a trace.

use std::time::Duration;

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
}

/// All that a disk was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// In the order of the trace.
    pub events: Vec<Event>,
}

impl Trace {
    /// Where the last range ends: the least that the disk has.
    pub fn end(&self) -> u64 {
        self.events.iter().map(|event| event.offset + event.bytes).max().unwrap_or(0)
    }
}
