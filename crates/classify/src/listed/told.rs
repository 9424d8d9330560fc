//! Statements of a journal, independent of its format.

use std::ops::Range;

/// A statement of a journal about a byte range of its file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// The range is metadata.
    Lists(Range<u64>),
    /// The range is metadata, unless it has been revoked.
    Mentions(Range<u64>),
    /// The range is no longer metadata: a file may get it soon.
    TakesBack(Range<u64>),
    /// All listed blocks have been written back, and the journal is empty.
    Empty,
}

/// Callback of a journal's reader; `None` stops the reader.
pub type Tell<'a> = &'a mut dyn FnMut(Told) -> Option<()>;
