//! History and copies from earlier lives, and prefetching by that history.

use std::sync::atomic::Ordering;

use flowstone_memory::mutated;
use flowstone_policy::{FileId, Link, Record};

use super::Copies;
use crate::copy::Copy;
use crate::lock::lock;
use crate::shelf::{Found, Name};
use crate::stamp::Identity;
use crate::store::space_of;

impl Copies {
    /// Adds a file of the history of an earlier life.
    pub fn restore(&self, identity: Identity, bytes: u64, uses: u32) {
        let mut kept = lock(&self.kept);
        let file = kept.id(identity);
        kept.history.restore(Record { file, bytes, uses });
    }

    /// Returns the history.
    pub fn history(&self) -> Vec<Record> {
        lock(&self.kept).history.records().collect()
    }

    /// Forgets the uses of a file that is gone.
    pub fn forget_use(&self, identity: Identity) {
        let mut kept = lock(&self.kept);
        let file = kept.id(identity);
        kept.history.forget(file);
    }

    /// Returns the most valuable files that are not held, in order of value.
    pub fn to_fetch(&self) -> Vec<FileId> {
        let kept = lock(&self.kept);
        let best = kept.history.prefetch(kept.ahead_max(), self.uses_min, Link::default());
        best.into_iter().filter(|file| !kept.policy.holds(*file)).collect()
    }

    /// Holds a file for prefetching, unless that would evict anything.
    pub fn holds_ahead(&self, identity: Identity, bytes: u64) -> bool {
        let mut kept = lock(&self.kept);
        let space = space_of(bytes);
        let held = kept.policy.held_bytes().max(self.bytes_in_use.load(Ordering::Relaxed));
        let fits = held + space <= kept.ahead_max();
        let fits = mutated("guest.ahead.takes-room-in-use", fits, true);
        let holds = fits && kept.holds_again(identity, space, self.uses_min);
        kept.carry_out();
        holds
    }

    /// Adopts the copies of an earlier life, as far as there is room. Whether they are current is
    /// checked when they are opened. The most used ones come last, and evict others.
    pub fn adopt_all(&self) -> std::io::Result<()> {
        let Some(shelf) = self.store.shelf() else { return Ok(()) };
        let mut all = shelf.find()?;
        all.sort_by_cached_key(|it| lock(&self.kept).uses(it.identity));
        for Found { identity, stamp, file, name } in all {
            let copy =
                Copy::new(file, stamp, None, Name::given(shelf.clone(), name), &self.bytes_in_use);
            let mut kept = lock(&self.kept);
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
