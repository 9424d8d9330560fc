//! One segment.

use crate::log::ids::Incarnation;

/// The state of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// Nothing in it, and perhaps a hole in the host file.
    #[default]
    Free,
    /// Nothing in it, and the host has given it space.
    Ready,
    /// Being appended to.
    Open,
    /// Full, or given up.
    Sealed,
    /// Sealed without live blocks: free after the next checkpoint.
    Dead,
}

/// One segment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Segment {
    pub state: State,
    /// Lifetime of what is in it; see `policy`.
    pub lifetime: u8,
    /// A block in it could not be read: it stays where it is.
    pub damaged: bool,
    /// Only a checkpoint frees it: replay may read it, or would not find what replaced its blocks.
    pub pinned: bool,
    /// Blocks in it that the map or the map root names.
    pub live: u32,
    /// Names its present use.
    pub incarnation: Incarnation,
    /// The log's clock when its blocks were written by a guest, on the mean: copies keep their age.
    pub birth: u64,
    /// The log's clock when it was sealed; after a start, `birth`.
    pub sealed: u64,
}

impl Segment {
    /// Whether nothing is appended to it: a checkpoint that begins now covers it.
    pub const fn is_closed(&self) -> bool {
        matches!(self.state, State::Sealed | State::Dead)
    }
}
