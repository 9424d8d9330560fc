//! What a journal tells, in whatever format.

use std::ops::Range;

/// What a journal says of a range of its file system, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// It holds metadata.
    Lists(Range<u64>),
    /// It holds metadata, unless it has been taken back.
    Mentions(Range<u64>),
    /// It holds metadata no more: a file may get it soon.
    TakesBack(Range<u64>),
    /// All that was listed has been written to its place, and the journal is empty.
    Empty,
}

/// What reads a journal hands over; `None`: it cannot be followed any more.
pub type Tell<'a> = &'a mut dyn FnMut(Told) -> Option<()>;
