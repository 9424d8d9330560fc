//! Free segments, and the order of their reuse. Their host space is allocated anew.

use std::collections::{BTreeMap, BTreeSet};

use flowstone_log_format::SegmentId;

use super::{LOOK_MOST, SegmentTable};

/// Free segments that have been used before. No access walks over them.
#[derive(Default)]
pub struct FreeSegments {
    /// In order of their release: reusing the oldest first lets neighbours die together.
    order: BTreeMap<u64, SegmentId>,
    /// The keys of `order`.
    releases: BTreeMap<SegmentId, u64>,
    released: u64,
    /// Those beyond the limit, which are not handed out.
    beyond: BTreeSet<SegmentId>,
}

impl FreeSegments {
    /// Returns the number of those within the limit.
    pub fn count(&self) -> u32 {
        self.order.len() as u32
    }

    /// Returns all of them, by number.
    pub fn all(&self) -> BTreeSet<SegmentId> {
        self.releases.keys().chain(&self.beyond).copied().collect()
    }

    pub fn add(&mut self, number: SegmentId, limit: u32) {
        if number.get() >= limit {
            self.beyond.insert(number);
        } else {
            self.released += 1;
            self.order.insert(self.released, number);
            self.releases.insert(number, self.released);
        }
    }

    fn pop_oldest(&mut self) -> Option<SegmentId> {
        let (_, number) = self.order.pop_first()?;
        self.releases.remove(&number);
        Some(number)
    }

    fn remove(&mut self, number: SegmentId) -> bool {
        self.releases.remove(&number).is_some_and(|release| self.order.remove(&release).is_some())
    }
}

impl SegmentTable {
    /// Moves the limit towards `limit`, past a few free segments; returns whether it is there.
    /// Those beyond it are no longer handed out; those that come within it are.
    pub fn move_limit(&mut self, limit: u32) -> bool {
        for _ in 0..LOOK_MOST {
            let highest = self.free.releases.last_key_value().map(|(number, _)| *number);
            let lowest_beyond = self.free.beyond.first().copied();
            if let Some(number) = highest.filter(|number| number.get() >= limit) {
                self.free.remove(number);
                self.limit = number.get();
                self.free.add(number, self.limit);
            } else if let Some(number) = lowest_beyond.filter(|number| number.get() < limit) {
                self.free.beyond.remove(&number);
                self.limit = number.get() + 1;
                self.free.add(number, self.limit);
            } else {
                self.limit = limit;
                return true;
            }
        }
        false
    }

    /// Raises the limit, up to `most`, until `wanted` segments are ready or obtainable; returns
    /// whether it is there. `compact` may have left all of the others in use.
    pub fn raise_limit_for(&mut self, wanted: u32, most: u32) -> bool {
        let short = wanted.saturating_sub(self.ready_or_obtainable());
        let known = self.segments.len().min(most);
        if short > 0 && self.limit < known {
            self.move_limit(known);
            return false;
        }
        self.move_limit(self.limit.max(self.limit.saturating_add(short).min(most)))
    }

    /// Takes a free segment to allocate; hand it back with `make_ready` or `put_back`.
    pub fn take_free(&mut self) -> Option<SegmentId> {
        let next = self.never_used();
        self.free.pop_oldest().or_else(|| self.take_new(next).then_some(next))
    }

    /// Takes the free segments that follow this one in the file, up to `count` and a few; returns
    /// their number.
    pub fn take_free_behind(&mut self, number: SegmentId, count: u32) -> u32 {
        let most = count.min(LOOK_MOST as u32 - 1);
        let mut taken = 0;
        while taken < most {
            let next = SegmentId::new(number.get() + 1 + taken);
            if !self.free.remove(next) && !self.take_new(next) {
                break;
            }
            taken += 1;
        }
        taken
    }

    /// Adds this segment to the table if it is the lowest never used; returns whether it is.
    fn take_new(&mut self, number: SegmentId) -> bool {
        let is_new = number == self.never_used() && number.get() < self.limit;
        if is_new {
            self.change(number, |_| {});
        }
        is_new
    }

    /// Takes all free segments within the limit that have been used before, in order of their
    /// release.
    pub fn take_all_free(&mut self) -> BTreeMap<u64, SegmentId> {
        self.free.releases = BTreeMap::new();
        std::mem::take(&mut self.free.order)
    }

    /// Takes the lowest free segment that has been used before, if it lies before this one.
    pub fn take_free_before(&mut self, number: SegmentId) -> Option<SegmentId> {
        let (first, _) = self.free.releases.first_key_value()?;
        let first = Some(*first).filter(|first| *first < number)?;
        self.free.remove(first);
        Some(first)
    }

    /// Puts a segment back as the last to be tried again: the host has no space for it.
    pub fn put_back(&mut self, number: SegmentId) {
        self.free.add(number, self.limit);
    }

    /// Adds segments whose host space has been deallocated to the free ones. Those beyond the limit
    /// were borrowed.
    pub fn add_free(&mut self, numbers: &[SegmentId]) {
        numbers.iter().for_each(|number| self.put_back(*number));
    }
}
