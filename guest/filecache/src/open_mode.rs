//! How an open of a file is answered. Pure: one table.
//!
//! From its first open to its last close the kernel binds a node to passthrough or to its page
//! cache, and to one backing file. An open that does not fit fails with EIO, so it must not be
//! answered: `Elsewhere` makes the kernel look the name up again, and that leads to another node of
//! the same file, its *split* node, which goes through the daemon.
//!
//! | node | opened for reading | for writing |
//! |---|---|---|
//! | closed, and so is the file's other node | Copy if there is a fresh one, else Source | Source |
//! | closed, and its writes are kept back | Plain | Plain |
//! | made by this open, at a server | Plain | Plain |
//! | closed, the file's split node is open | Elsewhere | Elsewhere |
//! | Copy, and it is fresh | Copy | Elsewhere |
//! | Copy, and it is stale | Elsewhere | Elsewhere |
//! | Source, by a caller with the same ids | Source | Source |
//! | Source, by another caller | Elsewhere | Elsewhere |
//! | Plain | Plain | Plain |
//! | the split node | Direct | Direct |
//!
//! A file that an open makes at a server is open in the daemon by that; in mode Source the kernel
//! would ask the server to open it once more.
//!
//! What may not be, or cannot be, Copy or Source is Plain. So is a file with the set-user-id or
//! set-group-id bit that is opened for writing, or Elsewhere where it is Source: a write takes the
//! bit away, and the kernel would go on showing it.

use flowstone_memory::mutant;

/// How the kernel and the daemon serve an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The kernel reads a complete copy.
    Copy,
    /// The kernel reads and writes the source's own file.
    Source,
    /// Through the daemon, with the kernel's page cache.
    Plain,
    /// Through the daemon, without it: another node of the file is read or written beside the
    /// daemon, and a page kept for this one would miss that.
    Direct,
}

/// The answer to an open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Open it so.
    As(Mode),
    /// Look it up again, and open the node that this leads to.
    Elsewhere,
}

/// What a node is at an open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// Not open.
    Closed,
    /// Open so.
    Open(Mode),
}

/// All that the answer depends on.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// The node that the kernel has sent.
    pub node: NodeState,
    /// Whether that is the split node of its file.
    pub is_split: bool,
    /// Whether the file's other node is open.
    pub other_is_open: bool,
    /// Whether it is opened for writing.
    pub writes: bool,
    /// Whether there is a copy with the stamp that the source has now.
    pub has_fresh_copy: bool,
    /// Whether its writes are kept back: the source does not have all bytes.
    pub is_kept_back: bool,
    /// Whether this open has made it, at a server.
    pub is_new: bool,
    /// Whether the ids of the caller are those for which the source's file is registered, or, of a
    /// closed node, whether they are known at all.
    pub ids_fit: bool,
    /// Whether it has the set-user-id or set-group-id bit.
    pub is_set_id: bool,
    /// What the user and the kernel allow.
    pub allowed: Modes,
}

impl Ask {
    /// Returns whether the kernel may open the source's file for the caller.
    fn suits_source(&self) -> bool {
        let ids_fit = self.ids_fit || mutant("guest.bind.shares-other-ids");
        ids_fit && !(self.writes && self.is_set_id)
    }
}

/// Which modes are allowed. Plain always is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Modes {
    /// Whether files may be opened in mode Copy.
    pub copy: bool,
    /// Whether files may be opened in mode Source.
    pub source: bool,
}

impl Modes {
    /// Everything through the daemon.
    pub const PLAIN: Self = Self { copy: false, source: false };
    /// All three.
    pub const ALL: Self = Self { copy: true, source: true };
}

/// The table.
pub fn answer(ask: &Ask) -> Answer {
    use Answer::{As, Elsewhere};
    if ask.is_split {
        return As(Mode::Direct);
    }
    match ask.node {
        NodeState::Closed if ask.other_is_open => Elsewhere,
        NodeState::Closed => As(first_mode(ask)),
        NodeState::Open(Mode::Copy) if !ask.writes && ask.has_fresh_copy => As(Mode::Copy),
        NodeState::Open(Mode::Source) if ask.suits_source() => As(Mode::Source),
        NodeState::Open(Mode::Copy | Mode::Source) => Elsewhere,
        NodeState::Open(mode @ (Mode::Plain | Mode::Direct)) => As(mode),
    }
}

/// The mode of the first open, to which the node is bound until its last close.
fn first_mode(ask: &Ask) -> Mode {
    if ask.is_kept_back || ask.is_new && !mutant("guest.bind.opens-new-files-again") {
        return Mode::Plain;
    }
    let reads = !ask.writes || mutant("guest.bind.writes-to-copies");
    if reads && ask.has_fresh_copy && ask.allowed.copy {
        // A store through a writable mapping of a copy would never leave it: reading only.
        Mode::Copy
    } else if ask.allowed.source && ask.suits_source() {
        Mode::Source
    } else {
        Mode::Plain
    }
}

#[cfg(test)]
#[path = "open_mode_tests.rs"]
mod tests;
