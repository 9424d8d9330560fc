//! Free segments: which of them is used next. Their host space is got for each anew.

use super::SegmentTable;
use crate::log::ids::SegmentId;

impl SegmentTable {
    /// A free segment to get host space for; hand it back with `make_ready` or `put_back`.
    pub fn take_free(&mut self) -> Option<SegmentId> {
        let next = SegmentId::new(self.segments.len() as u32);
        self.free.pop_front().or_else(|| self.take_new(next).then_some(next))
    }

    /// The free segments that follow this one in the file, up to `count`: how many there are.
    pub fn take_free_behind(&mut self, number: SegmentId, count: u32) -> u32 {
        let mut taken = 0;
        while taken < count {
            let next = SegmentId::new(number.get() + 1 + taken);
            match self.free.iter().position(|free| *free == next) {
                Some(at) => drop(self.free.remove(at)),
                None if self.take_new(next) => {}
                None => break,
            }
            taken += 1;
        }
        taken
    }

    /// Whether this is the first one that has never been used.
    fn take_new(&mut self, number: SegmentId) -> bool {
        let is_new = number.index() == self.segments.len() && number.get() < self.limit;
        if is_new {
            self.change(number, |_| {});
        }
        is_new
    }

    /// All free segments that have been used before.
    pub fn take_all_free(&mut self) -> Vec<SegmentId> {
        self.free.drain(..).collect()
    }

    /// The first of the free segments that have been used before, if it lies before this one.
    pub fn take_free_before(&mut self, number: SegmentId) -> Option<SegmentId> {
        let first = *self.free.iter().min().filter(|first| **first < number)?;
        self.free.retain(|free| *free != first);
        Some(first)
    }

    /// The host has no space for this one: it is the last to be asked for again.
    pub fn put_back(&mut self, number: SegmentId) {
        self.free.push_back(number);
    }
}
