//! One segment.

use flowstone_log_format::Incarnation;

/// The state of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// Unused, and perhaps a hole in the host file.
    #[default]
    Free,
    /// Unused, and allocated by the host.
    Ready,
    /// Being appended to.
    Open,
    /// Full, or abandoned.
    Sealed,
    /// Sealed without live blocks: freed by a sync, or if pinned by a checkpoint.
    Dead,
}

/// One segment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Segment {
    /// Its state.
    pub state: State,
    /// Lifetime class of its blocks.
    pub lifetime: u8,
    /// A block in it could not be read: it stays in this segment.
    pub damaged: bool,
    /// Only a checkpoint frees it: replay may read it, or would not find what replaced its blocks.
    pub pinned: bool,
    /// Number of its blocks that the map or the map root names.
    pub live: u32,
    /// Identifies its present use.
    pub incarnation: Incarnation,
    /// Mean of the log's clock when guests wrote its blocks: copies keep their age.
    pub birth: u64,
    /// The log's clock when it was sealed; after an open, `birth`.
    pub sealed: u64,
    /// Order of the deaths of segments.
    pub died: u64,
}

impl Segment {
    /// Returns whether nothing is appended to it: a checkpoint that begins now covers it.
    pub const fn is_closed(&self) -> bool {
        matches!(self.state, State::Sealed | State::Dead)
    }
}
