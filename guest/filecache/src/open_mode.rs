//! The answer to an open of a file, as a pure function: one table.
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
//! A file that an open creates at a server is thereby open in the daemon; in mode Source the kernel
//! would have the server open it once more.
//!
//! If Copy or Source is not allowed or not possible, the mode is Plain. So it is for a file with
//! the set-user-id or set-group-id bit that is opened for writing, or Elsewhere if it is bound to
//! Source: a write clears the bit, and the kernel would go on showing it.

use flowstone_memory::mutated;

/// How the kernel and the daemon serve an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The kernel reads a complete copy.
    Copy,
    /// The kernel reads and writes the source's own file.
    Source,
    /// Through the daemon, with the kernel's page cache.
    Plain,
    /// Through the daemon, without the page cache: another node of the file is accessed directly,
    /// and cached pages of this one would miss its changes.
    Direct,
}

/// The answer to an open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Open it in this mode.
    As(Mode),
    /// Look the name up again, and open the node that it leads to.
    Elsewhere,
}

/// The inputs of the answer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ask {
    /// The mode in which the node that the kernel has sent is open, if it is.
    pub bound: Option<Mode>,
    /// It is the split node of its file.
    pub is_split: bool,
    /// The file's other node is open.
    pub other_is_open: bool,
    /// It is opened for writing.
    pub writes: bool,
    /// There is a copy with the current stamp of the source.
    pub has_fresh_copy: bool,
    /// Its writes are kept back: the source does not have all bytes.
    pub is_kept_back: bool,
    /// This open has created it, at a server.
    pub is_new: bool,
    /// The ids of the caller are those for which the source's file is registered; for a closed
    /// node, they are known at all.
    pub ids_fit: bool,
    /// The file has the set-user-id or set-group-id bit.
    pub is_set_id: bool,
    /// The modes allowed by the user and the kernel.
    pub allowed: Modes,
}

impl Ask {
    /// Returns whether the kernel may open the source's file for the caller.
    fn suits_source(&self) -> bool {
        let ids_fit = mutated("guest.bind.shares-other-ids", self.ids_fit, true);
        ids_fit && !(self.writes && self.is_set_id)
    }
}

/// The allowed modes. Plain always is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Modes {
    /// Files may be opened in mode Copy.
    pub copy: bool,
    /// Files may be opened in mode Source.
    pub source: bool,
}

impl Modes {
    /// Only through the daemon.
    pub const PLAIN: Self = Self { copy: false, source: false };
    /// All modes.
    pub const ALL: Self = Self { copy: true, source: true };
}

/// Returns the answer to an open, by the table.
pub fn answer(ask: &Ask) -> Answer {
    use Answer::{As, Elsewhere};
    if ask.is_split {
        return As(Mode::Direct);
    }
    match ask.bound {
        None if ask.other_is_open => Elsewhere,
        None => As(first_mode(ask)),
        Some(Mode::Copy) if !ask.writes && ask.has_fresh_copy => As(Mode::Copy),
        Some(Mode::Source) if ask.suits_source() => As(Mode::Source),
        Some(Mode::Copy | Mode::Source) => Elsewhere,
        Some(mode @ (Mode::Plain | Mode::Direct)) => As(mode),
    }
}

/// Returns the mode of the first open, to which the node is bound until its last close.
fn first_mode(ask: &Ask) -> Mode {
    let is_new = mutated("guest.bind.opens-new-files-again", ask.is_new, false);
    if ask.is_kept_back || is_new {
        return Mode::Plain;
    }
    let reads = mutated("guest.bind.writes-to-copies", !ask.writes, true);
    if reads && ask.has_fresh_copy && ask.allowed.copy {
        // Reading only: a store through a writable mapping of a copy would never reach the source.
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
