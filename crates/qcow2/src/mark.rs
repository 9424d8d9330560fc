//! The mark in the header: states that changes of the map may be in a redo file, and identifies
//! that file.
//!
//! It is stored in the autoclear features. Software that writes an image clears those that it does
//! not know, so by the rules of the format other software that writes the image voids the changes.
//!
//! ```text
//!  63  62        48 47                    24 23           8 7         0
//! ┌───┬────────────┬────────────────────────┬──────────────┬───────────┐
//! │ 1 │ boot       │ session                │ commits      │ not ours  │
//! └───┴────────────┴────────────────────────┴──────────────┴───────────┘
//! ```
//!
//! * `boot`: some bits of the number of the host's boot. They only extend the session's number
//!   here: the redo file records the boot in which it was written. Earlier versions compare them.
//! * `session`: random, drawn when a daemon begins a redo file, never 0. The first version had bit
//!   63 alone.
//! * `commits`: counts the commits of the session. A copy of the image that was made while it was
//!   in use has the number of an earlier commit.

use std::io;

use super::boot::{boot_number, random_number};

/// Value of bit 63 and the bits below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(u64);

const MARKED: u64 = 1 << 63;
const BOOT_SHIFT: u32 = 48;
const BOOT_MASK: u64 = (1 << 15) - 1;
const SESSION_SHIFT: u32 = 24;
const SESSION_MASK: u64 = (1 << 24) - 1;
const COMMITS_SHIFT: u32 = 8;
const COMMITS_MASK: u64 = (1 << 16) - 1;
const OURS: u64 = !0 << COMMITS_SHIFT;

impl Mark {
    /// The mark of a redo file that begins now.
    pub fn begin() -> io::Result<Self> {
        let boot = boot_number()? as u64 & BOOT_MASK;
        let random = random_number()? as u64 & SESSION_MASK;
        Ok(Self(MARKED | boot << BOOT_SHIFT | random.max(1) << SESSION_SHIFT))
    }

    /// Returns the mark in these autoclear features, if any.
    pub fn of(autoclear: u64) -> Option<Self> {
        (autoclear & MARKED != 0).then_some(Self(autoclear & OURS))
    }

    /// Returns the bits for the autoclear features, or for a redo file.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Returns whether the mark was written by a version without numbers.
    pub fn is_old_kind(self) -> bool {
        self.0 == MARKED
    }

    /// Returns the number of the session, with the boot's: part of the redo file's name.
    pub fn session(self) -> u64 {
        self.0 >> SESSION_SHIFT
    }

    /// Returns whether both belong to one session.
    pub fn is_akin(self, other: Self) -> bool {
        self.session() == other.session()
    }

    /// Returns the mark after another commit.
    pub fn next(self) -> Self {
        let commits = (self.0 >> COMMITS_SHIFT).wrapping_add(1) & COMMITS_MASK;
        Self(self.0 & !(COMMITS_MASK << COMMITS_SHIFT) | commits << COMMITS_SHIFT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_tells_sessions_and_commits_apart() {
        let (one, other) = (Mark::begin().unwrap(), Mark::begin().unwrap());
        assert!(!one.is_old_kind() && !one.is_akin(other));
        assert_eq!(Mark::of(one.bits() | 3), Some(one), "the other bits are not ours");
        assert_eq!(Mark::of(one.bits() & !MARKED), None);
        assert!(Mark::of(1 << 63).unwrap().is_old_kind());
        let mut next = one;
        for commit in 1..=COMMITS_MASK + 1 {
            next = next.next();
            assert!(next.is_akin(one));
            assert_eq!(next == one, commit == COMMITS_MASK + 1);
        }
    }
}
