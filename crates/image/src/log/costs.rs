//! What a log costs besides the blocks that guests write: for statistics, since the image was
//! opened.

use std::time::Duration;

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogCosts {
    /// Headers of records of all kinds.
    pub header_blocks: u64,
    /// Seals at the ends of segments.
    pub seal_blocks: u64,
    /// Segments whose live blocks cleaning has copied.
    pub cleaned_segments: u64,
    /// Blocks that it has copied, without headers.
    pub copied_blocks: u64,
    /// How long it took, without the time that it let guests go first.
    pub cleaning_time: Duration,
}
