//! Free segments, and the order of their reuse. Their host space is allocated anew.

use flowstone_log_format::SegmentId;

use super::SegmentTable;

impl SegmentTable {
    /// Takes a free segment to allocate; hand it back with `make_ready` or `put_back`.
    pub fn take_free(&mut self) -> Option<SegmentId> {
        let next = SegmentId::new(self.segments.len() as u32);
        self.free.pop_front().or_else(|| self.take_new(next).then_some(next))
    }

    /// Takes the free segments that follow this one in the file, up to `count`; returns their
    /// number.
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

    /// Adds this segment to the table if it is the lowest never used; returns whether it is.
    fn take_new(&mut self, number: SegmentId) -> bool {
        let is_new = number.index() == self.segments.len() && number.get() < self.limit;
        if is_new {
            self.change(number, |_| {});
        }
        is_new
    }

    /// Takes all free segments that have been used before.
    pub fn take_all_free(&mut self) -> Vec<SegmentId> {
        self.free.drain(..).collect()
    }

    /// Takes the lowest free segment that has been used before, if it lies before this one.
    pub fn take_free_before(&mut self, number: SegmentId) -> Option<SegmentId> {
        let first = *self.free.iter().min().filter(|first| **first < number)?;
        self.free.retain(|free| *free != first);
        Some(first)
    }

    /// Puts a segment back as the last to be tried again: the host has no space for it.
    pub fn put_back(&mut self, number: SegmentId) {
        self.free.push_back(number);
    }
}
