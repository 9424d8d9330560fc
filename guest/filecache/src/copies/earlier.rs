//! What an earlier life has left, and what is fetched ahead of its use by that.

use std::sync::atomic::Ordering;

use flowstone_memory::mutant;
use flowstone_policy::{FileId, Link, Record};

use super::Copies;
use crate::copy::Copy;
use crate::shelf::{Found, Name};
use crate::stamp::Identity;
use crate::store::space_of;

impl Copies {
    /// Takes a file of the history of an earlier life.
    pub fn restore(&self, identity: Identity, bytes: u64, uses: u32) {
        let mut kept = self.kept();
        let file = kept.id(identity);
        kept.history.restore(Record { file, bytes, uses });
    }

    /// The history.
    pub fn history(&self) -> Vec<Record> {
        self.kept().history.records().collect()
    }

    /// A file is gone: its use says nothing any more.
    pub fn forget_use(&self, identity: Identity) {
        let mut kept = self.kept();
        let file = kept.id(identity);
        kept.history.forget(file);
    }

    /// Files that are not held, of those that are worth most; these first.
    pub fn to_fetch(&self) -> Vec<FileId> {
        let kept = self.kept();
        let best = kept.history.prefetch(kept.ahead_max(), self.uses_min, Link::default());
        best.into_iter().filter(|file| !kept.policy.holds(*file)).collect()
    }

    /// A file is to be held ahead of its use. Not if anything would have to go for that.
    pub fn holds_ahead(&self, identity: Identity, bytes: u64) -> bool {
        let mut kept = self.kept();
        let space = space_of(bytes);
        let held = kept.policy.held_bytes().max(self.bytes_in_use.load(Ordering::Relaxed));
        let fits = held + space <= kept.ahead_max() || mutant("guest.ahead.takes-room-in-use");
        let holds = fits && kept.holds_again(identity, space, self.uses_min);
        kept.carry_out();
        holds
    }

    /// Takes the copies that an earlier life has left, as far as there is room. Which of them are
    /// what the source has is seen when they are opened. Those used most come last, and push out
    /// others.
    pub fn adopt_all(&self) -> std::io::Result<()> {
        let Some(shelf) = self.store.shelf() else { return Ok(()) };
        let mut all = shelf.find()?;
        all.sort_by_cached_key(|it| self.kept().uses(it.identity));
        for Found { identity, stamp, file, name } in all {
            let copy =
                Copy::new(file, stamp, None, Name::given(shelf.clone(), name), &self.bytes_in_use);
            let mut kept = self.kept();
            let has_place = kept.copies.len() < self.files_max;
            if has_place && kept.holds_again(identity, space_of(stamp.size), self.uses_min) {
                kept.copies.insert(identity, copy);
            } else {
                copy.retire();
            }
            kept.carry_out();
        }
        Ok(())
    }
}
