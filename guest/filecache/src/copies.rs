//! The copies, and which files deserve one: what the policy holds and what is there of it.
//!
//! A copy is complete and belongs to a stamp of the file. One that is open is pinned: it is dropped
//! from here as any other, and its memory is given back at its last close.

mod earlier;

use std::collections::HashMap;
use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use flowstone_memory::mutant;
use flowstone_policy::{Access, Curve, FileId, History, Order, Policy, Use};

use crate::budget::Budget;
use crate::copy::Copy;
use crate::lock::lock;
use crate::shelf::Name;
use crate::stamp::{Attributes, Identity};
use crate::store::{Store, files_max, space_of};

/// Files that the usage history has room for.
pub const HISTORY_FILES: usize = 1 << 16;

/// All copies of a mount.
pub struct Copies {
    store: Store,
    /// What the options say.
    option: Budget,
    /// Uses from which on a file is fetched ahead.
    uses_min: u32,
    files_max: usize,
    /// Of all copies, those that are only open still among them.
    bytes_in_use: Arc<AtomicU64>,
    kept: Mutex<Kept>,
}

struct Kept {
    /// The number of the source's file system.
    home: u64,
    policy: Box<dyn Policy>,
    history: History,
    orders: Vec<Order>,
    /// Dirty files that the policy does not want to be dirty any more.
    to_write_back: Vec<Identity>,
    copies: HashMap<Identity, Arc<Copy>>,
    /// By the policy's number.
    identities: HashMap<FileId, Identity>,
    /// Files that are being copied. What makes a copy in the making worthless takes it out.
    fills: HashMap<Identity, u64>,
    next_fill: u64,
    curve: Curve,
    /// What they may take now.
    limit: Budget,
    /// Files open for writing, and how often: bytes stored through a mapping change no stamp.
    writers: HashMap<Identity, u32>,
    evictions: u64,
    epochs: u64,
}

/// What is there, for `stats`.
#[derive(Clone, Copy, Debug)]
pub struct Holdings {
    /// Copies.
    pub files: u64,
    /// What all of them take.
    pub bytes: u64,
    /// Copies dropped to make room.
    pub evictions: u64,
    /// Ends of epochs.
    pub epochs: u64,
    /// What they may take.
    pub limit: Budget,
}

/// The policy's number of a file. That of a file system changes when it is mounted again, and
/// counts only for those that are mounted below the source.
fn file_id(home: u64, identity: Identity) -> FileId {
    let parts = [identity.inode, identity.device ^ home, identity.birth.cast_unsigned()];
    FileId(
        parts.into_iter().fold(0, |mixed, part| {
            (mixed ^ part).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
        }),
    )
}

impl Copies {
    /// None yet, and room for what the options say. `home`: the number of the source's file system.
    /// `uses_min`: those from which on a file was worth holding, or is worth fetching ahead.
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
            orders: Vec::new(),
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

    fn kept(&self) -> MutexGuard<'_, Kept> {
        lock(&self.kept)
    }

    /// The policy's number of a file.
    pub fn id(&self, identity: Identity) -> FileId {
        self.kept().id(identity)
    }

    /// A file is opened. Returns whether it deserves a copy.
    pub fn used(&self, identity: Identity, usage: Use, bytes: u64) -> bool {
        let mut kept = self.kept();
        let file = kept.id(identity);
        let space = space_of(bytes);
        let uses = kept.history.used(file, space);
        kept.identities.insert(file, identity);
        let access = Access { file, usage, bytes: space, uses };
        kept.curve.used(&access);
        let Kept { policy, orders, .. } = &mut *kept;
        let keep = policy.used(&access, orders);
        if !keep && !kept.policy.holds(file) {
            kept.identities.remove(&file);
        }
        kept.carry_out();
        keep
    }

    /// The copy of a file.
    pub fn get(&self, identity: Identity) -> Option<Arc<Copy>> {
        self.kept().copies.get(&identity).cloned()
    }

    /// The copy of a file is no copy any more. Its place is still the file's.
    pub fn retire(&self, identity: Identity) {
        let mut kept = self.kept();
        kept.fills.remove(&identity);
        kept.take(identity);
    }

    /// Drops the copy of a file, and forgets that it deserved one.
    pub fn drop_file(&self, identity: Identity) {
        self.retire(identity);
        self.kept().forget(identity);
    }

    /// Drops everything.
    pub fn drop_all(&self) {
        let all: Vec<Identity> = {
            let kept = self.kept();
            kept.identities.values().chain(kept.copies.keys()).copied().collect()
        };
        all.into_iter().for_each(|identity| self.drop_file(identity));
    }

    /// A file is opened for writing: what is copied of it from now on may be half of each.
    pub fn writer_opens(&self, identity: Identity) {
        *self.kept().writers.entry(identity).or_default() += 1;
        self.retire(identity);
    }

    /// A writer has closed it.
    pub fn writer_closes(&self, identity: Identity) {
        let mut kept = self.kept();
        if let Some(count) = kept.writers.get_mut(&identity) {
            *count -= 1;
            if *count == 0 {
                kept.writers.remove(&identity);
            }
        }
        drop(kept);
        self.retire(identity);
    }

    /// Returns whether a copy of a file is still wanted and there is none.
    pub fn wants(&self, identity: Identity) -> bool {
        let kept = self.kept();
        let has_place = kept.copies.len() < self.files_max;
        has_place && kept.policy.holds(kept.id(identity)) && !kept.copies.contains_key(&identity)
    }

    /// A file is to be copied now. Nothing if it is not wanted, is open for writing, or another
    /// thread copies it.
    pub fn begin_fill(&self, identity: Identity) -> Option<Fill> {
        if !self.wants(identity) {
            return None;
        }
        let mut kept = self.kept();
        let is_written =
            kept.writers.contains_key(&identity) && !mutant("guest.fill.copies-beside-writers");
        if kept.fills.contains_key(&identity) || is_written {
            return None;
        }
        let number = kept.next_fill;
        kept.next_fill += 1;
        kept.fills.insert(identity, number);
        drop(kept);
        Some(Fill { identity, number })
    }

    /// A new file for a copy.
    pub fn new_file(&self) -> std::io::Result<File> {
        self.store.new_file()
    }

    /// A file has been copied, or has not. Returns whether there is a new copy.
    pub fn end_fill(&self, fill: &Fill, copied: Option<(File, Attributes)>) -> bool {
        let mut kept = self.kept();
        let is_valid = kept.fills.get(&fill.identity) == Some(&fill.number)
            || mutant("guest.fill.keeps-what-a-writer-spoilt");
        if is_valid {
            kept.fills.remove(&fill.identity);
        }
        let in_use = self.bytes_in_use.load(Ordering::Relaxed);
        let has_room = |bytes: u64| in_use + bytes <= kept.limit.bytes || !kept.has_dirty();
        // The policy knows nothing of what is dirty, and would have it copied at each use.
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

    /// A copy for a file that is written here: a new one for one that is empty, else the one that
    /// is of this stamp. There is no place in the policy in that; what is not held is dropped once
    /// it is at the source.
    pub fn copy_to_write(&self, identity: Identity, seen: &Attributes) -> Option<Arc<Copy>> {
        let mut kept = self.kept();
        kept.fills.remove(&identity);
        // The bytes of one in a folder would change under its name.
        let has_name = self.store.shelf().is_some();
        if seen.stamp.size > 0 && has_name && !mutant("guest.write-back.dirties-what-has-a-name") {
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

    /// Returns whether copies may take so many bytes more.
    pub fn has_room(&self, more: u64) -> bool {
        let bytes = self.bytes_in_use.load(Ordering::Relaxed);
        more == 0 || bytes + space_of(more) <= self.kept().limit.bytes
    }

    /// Dirty files that are to be written back for the policy's sake.
    pub fn take_to_write_back(&self) -> Vec<Identity> {
        std::mem::take(&mut self.kept().to_write_back)
    }

    /// An epoch ends.
    pub fn epoch(&self) {
        let mut kept = self.kept();
        kept.epochs += 1;
        let Kept { policy, orders, .. } = &mut *kept;
        policy.epoch(orders);
        kept.carry_out();
    }

    /// They may take another number of bytes from now on. What is above it goes.
    pub fn limit_to(&self, limit: Budget) {
        let mut kept = self.kept();
        if kept.limit == limit {
            return;
        }
        kept.limit = limit;
        let Kept { policy, orders, .. } = &mut *kept;
        policy.set_budget(limit.bytes, orders);
        kept.carry_out();
    }

    /// What they may take at most.
    pub fn bytes_max(&self) -> u64 {
        self.option.bytes
    }

    /// What part of the uses caches of other sizes would answer, in equal steps up to the most that
    /// they may take.
    pub fn curve(&self) -> Vec<f64> {
        self.kept().curve.points()
    }

    /// What is there.
    pub fn holdings(&self) -> Holdings {
        let kept = self.kept();
        Holdings {
            files: kept.copies.len() as u64,
            bytes: self.bytes_in_use.load(Ordering::Relaxed),
            evictions: kept.evictions,
            epochs: kept.epochs,
            limit: kept.limit,
        }
    }
}

/// A copy in the making.
pub struct Fill {
    identity: Identity,
    number: u64,
}

impl Kept {
    /// What may be held before anything is fetched ahead. The rest is for what is used.
    fn ahead_max(&self) -> u64 {
        self.limit.bytes / 10 * 9
    }

    /// What a file has deserved is forgotten.
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

    /// A file that was held in an earlier life is held again, if there is room: that is no use.
    fn holds_again(&mut self, identity: Identity, bytes: u64, uses_min: u32) -> bool {
        let file = self.id(identity);
        let uses = self.uses(identity).max(uses_min);
        let Self { policy, orders, .. } = self;
        let is_new = !self.copies.contains_key(&identity);
        let access = Access { file, usage: Use::Read, bytes, uses };
        let holds = is_new && policy.used(&access, orders);
        if holds {
            self.identities.insert(file, identity);
        }
        holds
    }

    /// Does what the policy has ordered. What is dirty is written back first, by another thread,
    /// and is dropped then.
    fn carry_out(&mut self) {
        for order in std::mem::take(&mut self.orders) {
            let (Order::Drop(file) | Order::WriteBack(file)) = order;
            let is_dirty = |it: &&Identity| self.copies.get(it).is_some_and(|it| it.is_dirty());
            self.to_write_back.extend(self.identities.get(&file).filter(is_dirty));
            let Order::Drop(file) = order else { continue };
            let Some(identity) = self.identities.remove(&file) else { continue };
            self.fills.remove(&identity);
            self.evictions += u64::from(self.take(identity));
        }
    }

    /// Drops a copy, unless it has bytes that are nowhere else.
    fn take(&mut self, identity: Identity) -> bool {
        let may_go =
            |copy: &&Arc<Copy>| !copy.is_dirty() || mutant("guest.copies.drop-what-is-dirty");
        let Some(copy) = self.copies.get(&identity).filter(may_go) else { return false };
        copy.retire();
        self.copies.remove(&identity);
        true
    }
}

#[cfg(test)]
#[path = "copies_tests.rs"]
mod tests;
