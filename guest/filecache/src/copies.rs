//! All copies, and the files that deserve one: the policy's decisions and the copies that exist.
//!
//! A copy is complete and belongs to a stamp of the file. One that is open is pinned: it is removed
//! here as any other, and its memory is freed at its last close.

mod earlier;

use std::collections::HashMap;
use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use flowstone_memory::mutated;
use flowstone_policy::{Access, Curve, FileId, History, Policy, Use};

use crate::budget::Budget;
use crate::copy::Copy;
use crate::lock::lock;
use crate::shelf::Name;
use crate::stamp::{Attributes, Identity};
use crate::store::{Store, files_max, space_of};

/// Capacity of the usage history in files.
pub const HISTORY_FILES: usize = 1 << 16;

/// All copies of a mount.
pub struct Copies {
    store: Store,
    /// The limit of the options.
    option: Budget,
    /// Number of uses from which on a file is prefetched.
    uses_min: u32,
    files_max: usize,
    /// Bytes of all copies, including dropped ones that are still open.
    bytes_in_use: Arc<AtomicU64>,
    kept: Mutex<Kept>,
}

struct Kept {
    /// The device number of the source's file system.
    home: u64,
    policy: Box<dyn Policy>,
    history: History,
    drops: Vec<FileId>,
    /// Dirty files that the policy has dropped.
    to_write_back: Vec<Identity>,
    copies: HashMap<Identity, Arc<Copy>>,
    /// Files by the policy's number.
    identities: HashMap<FileId, Identity>,
    /// Files that are being copied. An entry is removed when its fill becomes invalid.
    fills: HashMap<Identity, u64>,
    next_fill: u64,
    curve: Curve,
    /// The current limit.
    limit: Budget,
    /// Files open for writing, with the number of writers: stores through a mapping change no
    /// stamp.
    writers: HashMap<Identity, u32>,
    evictions: u64,
    epochs: u64,
}

/// The state of the copies, for `stats`.
#[derive(Clone, Copy, Debug)]
pub struct Holdings {
    /// Number of copies.
    pub files: u64,
    /// Bytes of all copies.
    pub bytes: u64,
    /// Copies evicted to make room.
    pub evictions: u64,
    /// Completed epochs.
    pub epochs: u64,
    /// The current limit.
    pub limit: Budget,
}

/// Returns the policy's number of a file. The device number of a file system changes when it is
/// remounted, and counts only for those mounted below the source.
fn file_id(home: u64, identity: Identity) -> FileId {
    let parts = [identity.inode, identity.device ^ home, identity.birth.cast_unsigned()];
    FileId(
        parts.into_iter().fold(0, |mixed, part| {
            (mixed ^ part).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
        }),
    )
}

impl Copies {
    /// Starts without copies, with the limit of the options. `home`: the device number of the
    /// source's file system. `uses_min`: number of uses from which on a file of the history is
    /// worth holding or prefetching.
    pub fn new(
        store: Store,
        option: Budget,
        policy: Box<dyn Policy>,
        home: u64,
        uses_min: u32,
    ) -> Self {
        let kept = Kept {
            home,
            policy,
            history: History::new(HISTORY_FILES),
            drops: Vec::new(),
            to_write_back: Vec::new(),
            copies: HashMap::new(),
            identities: HashMap::new(),
            fills: HashMap::new(),
            next_fill: 0,
            curve: Curve::new(option.bytes),
            limit: option,
            writers: HashMap::new(),
            evictions: 0,
            epochs: 0,
        };
        let (files_max, kept) = (files_max(), Mutex::new(kept));
        Self { store, option, uses_min, files_max, bytes_in_use: Arc::default(), kept }
    }

    /// Returns the policy's number of a file.
    pub fn id(&self, identity: Identity) -> FileId {
        lock(&self.kept).id(identity)
    }

    /// Records an open of a file. Returns whether it deserves a copy.
    pub fn used(&self, identity: Identity, usage: Use, bytes: u64) -> bool {
        let mut kept = lock(&self.kept);
        let file = kept.id(identity);
        let space = space_of(bytes);
        let uses = kept.history.used(file, space);
        kept.identities.insert(file, identity);
        let access = Access { file, usage, bytes: space, uses };
        kept.curve.used(&access);
        let Kept { policy, drops, .. } = &mut *kept;
        let keep = policy.used(&access, drops);
        if !keep && !kept.policy.holds(file) {
            kept.identities.remove(&file);
        }
        kept.carry_out();
        keep
    }

    /// Returns the copy of a file.
    pub fn get(&self, identity: Identity) -> Option<Arc<Copy>> {
        lock(&self.kept).copies.get(&identity).cloned()
    }

    /// Retires the copy of a file and cancels its fill. The policy still holds the file.
    pub fn retire(&self, identity: Identity) {
        let mut kept = lock(&self.kept);
        kept.fills.remove(&identity);
        kept.take(identity);
    }

    /// Drops the copy of a file, and makes the policy forget it.
    pub fn drop_file(&self, identity: Identity) {
        self.retire(identity);
        lock(&self.kept).forget(identity);
    }

    /// Drops all copies.
    pub fn drop_all(&self) {
        let all: Vec<Identity> = {
            let kept = lock(&self.kept);
            kept.identities.values().chain(kept.copies.keys()).copied().collect()
        };
        all.into_iter().for_each(|identity| self.drop_file(identity));
    }

    /// Records that a writer opens a file: a copy made from now on may mix old and new bytes.
    pub fn writer_opens(&self, identity: Identity) {
        *lock(&self.kept).writers.entry(identity).or_default() += 1;
        self.retire(identity);
    }

    /// Records that a writer has closed it.
    pub fn writer_closes(&self, identity: Identity) {
        let mut kept = lock(&self.kept);
        if let Some(count) = kept.writers.get_mut(&identity) {
            *count -= 1;
            if *count == 0 {
                kept.writers.remove(&identity);
            }
        }
        drop(kept);
        self.retire(identity);
    }

    /// Returns whether a file has no copy and the policy wants one.
    pub fn wants(&self, identity: Identity) -> bool {
        let kept = lock(&self.kept);
        let has_place = kept.copies.len() < self.files_max;
        has_place && kept.policy.holds(kept.id(identity)) && !kept.copies.contains_key(&identity)
    }

    /// Begins to copy a file. `None` if it is not wanted, is open for writing, or is being copied
    /// by another thread.
    pub fn begin_fill(&self, identity: Identity) -> Option<Fill> {
        if !self.wants(identity) {
            return None;
        }
        let mut kept = lock(&self.kept);
        let is_written = kept.writers.contains_key(&identity);
        let is_written = mutated("guest.fill.copies-beside-writers", is_written, false);
        if kept.fills.contains_key(&identity) || is_written {
            return None;
        }
        let number = kept.next_fill;
        kept.next_fill += 1;
        kept.fills.insert(identity, number);
        drop(kept);
        Some(Fill { identity, number })
    }

    /// Creates a file for a copy.
    pub fn new_file(&self) -> std::io::Result<File> {
        self.store.new_file()
    }

    /// Ends a fill, with the copied file if it succeeded. Returns whether there is a new copy.
    pub fn end_fill(&self, fill: &Fill, copied: Option<(File, Attributes)>) -> bool {
        let mut kept = lock(&self.kept);
        let is_valid = kept.fills.get(&fill.identity) == Some(&fill.number);
        let is_valid = mutated("guest.fill.keeps-what-a-writer-spoilt", is_valid, true);
        if is_valid {
            kept.fills.remove(&fill.identity);
        }
        let in_use = self.bytes_in_use.load(Ordering::Relaxed);
        let has_room = |bytes: u64| in_use + bytes <= kept.limit.bytes || !kept.has_dirty();
        // The policy does not account for dirty bytes, and would have the file copied at each use.
        if copied.as_ref().is_some_and(|(_, seen)| !has_room(space_of(seen.stamp.size))) {
            kept.forget(fill.identity);
        }
        let is_wanted = kept.policy.holds(kept.id(fill.identity));
        let Some((file, seen)) = copied.filter(|_| is_valid && is_wanted) else { return false };
        let name = Name::none(self.store.shelf().cloned());
        let copy = Copy::new(file, seen.stamp, Some(seen), name, &self.bytes_in_use);
        kept.take(fill.identity);
        kept.copies.insert(fill.identity, copy.clone());
        drop(kept);
        copy.keep(fill.identity, seen.stamp);
        true
    }

    /// Returns a copy for a file whose writes are kept back: a new one for an empty file, else the
    /// one of this stamp. It needs no place in the policy; a copy that the policy does not hold is
    /// dropped once its bytes are at the source.
    pub fn copy_to_write(&self, identity: Identity, seen: &Attributes) -> Option<Arc<Copy>> {
        let mut kept = lock(&self.kept);
        kept.fills.remove(&identity);
        // The bytes of a copy in a folder would change under its name.
        let has_name = self.store.shelf().is_some();
        let has_name = mutated("guest.write-back.dirties-what-has-a-name", has_name, false);
        if seen.stamp.size > 0 && has_name {
            return None;
        }
        if seen.stamp.size > 0 {
            return kept.copies.get(&identity).filter(|it| it.is_of(seen.stamp)).cloned();
        }
        let has_place = kept.copies.len() < self.files_max;
        let file = has_place.then(|| self.store.new_file().ok()).flatten()?;
        let name = Name::none(self.store.shelf().cloned());
        let copy = Copy::new(file, seen.stamp, Some(*seen), name, &self.bytes_in_use);
        kept.take(identity);
        kept.copies.insert(identity, copy.clone());
        Some(copy)
    }

    /// Returns whether copies may take `more` more bytes.
    pub fn has_room(&self, more: u64) -> bool {
        let bytes = self.bytes_in_use.load(Ordering::Relaxed);
        more == 0 || bytes + space_of(more) <= lock(&self.kept).limit.bytes
    }

    /// Returns the dirty files that the policy wants to be written back.
    pub fn take_to_write_back(&self) -> Vec<Identity> {
        std::mem::take(&mut lock(&self.kept).to_write_back)
    }

    /// Ends an epoch.
    pub fn epoch(&self) {
        let mut kept = lock(&self.kept);
        kept.epochs += 1;
        let Kept { policy, drops, .. } = &mut *kept;
        policy.epoch(drops);
        kept.carry_out();
    }

    /// Sets another limit, and evicts what exceeds it.
    pub fn limit_to(&self, limit: Budget) {
        let mut kept = lock(&self.kept);
        if kept.limit == limit {
            return;
        }
        kept.limit = limit;
        let Kept { policy, drops, .. } = &mut *kept;
        policy.set_budget(limit.bytes, drops);
        kept.carry_out();
    }

    /// Returns the limit of the options.
    pub fn bytes_max(&self) -> u64 {
        self.option.bytes
    }

    /// Returns the estimated hit ratio at sizes in equal steps up to the limit of the options.
    pub fn curve(&self) -> Vec<f64> {
        lock(&self.kept).curve.points()
    }

    /// Returns the state of the copies.
    pub fn holdings(&self) -> Holdings {
        let kept = lock(&self.kept);
        Holdings {
            files: kept.copies.len() as u64,
            bytes: self.bytes_in_use.load(Ordering::Relaxed),
            evictions: kept.evictions,
            epochs: kept.epochs,
            limit: kept.limit,
        }
    }
}

/// A fill in progress.
pub struct Fill {
    identity: Identity,
    number: u64,
}

impl Kept {
    /// Returns the limit of held bytes for prefetching. The rest is left to files in use.
    fn ahead_max(&self) -> u64 {
        self.limit.bytes / 10 * 9
    }

    /// Makes the policy forget a file.
    fn forget(&mut self, identity: Identity) {
        let file = self.id(identity);
        self.policy.forget(file);
        self.identities.remove(&file);
    }

    fn has_dirty(&self) -> bool {
        self.copies.values().any(|copy| copy.is_dirty())
    }

    fn id(&self, identity: Identity) -> FileId {
        file_id(self.home, identity)
    }

    fn uses(&self, identity: Identity) -> u32 {
        self.history.uses(self.id(identity))
    }

    /// Holds a file of an earlier life again, if there is room, without counting a use.
    fn holds_again(&mut self, identity: Identity, bytes: u64, uses_min: u32) -> bool {
        let file = self.id(identity);
        let uses = self.uses(identity).max(uses_min);
        let Self { policy, drops, .. } = self;
        let is_new = !self.copies.contains_key(&identity);
        let access = Access { file, usage: Use::Read, bytes, uses };
        let holds = is_new && policy.used(&access, drops);
        if holds {
            self.identities.insert(file, identity);
        }
        holds
    }

    /// Carries out the policy's drops. Dirty files are first written back, by another thread, and
    /// dropped then.
    fn carry_out(&mut self) {
        for file in std::mem::take(&mut self.drops) {
            let is_dirty = |it: &&Identity| self.copies.get(it).is_some_and(|it| it.is_dirty());
            self.to_write_back.extend(self.identities.get(&file).filter(is_dirty));
            let Some(identity) = self.identities.remove(&file) else { continue };
            self.fills.remove(&identity);
            self.evictions += u64::from(self.take(identity));
        }
    }

    /// Drops a copy, unless it is dirty: its bytes are nowhere else.
    fn take(&mut self, identity: Identity) -> bool {
        let may_go =
            |copy: &&Arc<Copy>| mutated("guest.copies.drop-what-is-dirty", !copy.is_dirty(), true);
        let Some(copy) = self.copies.get(&identity).filter(may_go) else { return false };
        copy.retire();
        self.copies.remove(&identity);
        true
    }
}

#[cfg(test)]
#[path = "copies_tests.rs"]
mod tests;
