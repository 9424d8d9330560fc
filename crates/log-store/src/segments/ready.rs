//! Ready segments: the order in which they are opened, and deallocated.
//!
//! A write into space that the host has allocated and that was never written costs more: the host
//! file system changes its own metadata with it. So recycled segments, which were written before,
//! are opened first, the oldest of them first, and fresh ones only when there are none.

use std::collections::VecDeque;

use flowstone_log_format::SegmentId;

/// See the module.
#[derive(Default)]
pub struct ReadySegments {
    /// In order of their release: neighbours that were filled together die together again.
    recycled: VecDeque<SegmentId>,
    /// In order of allocation.
    fresh: VecDeque<SegmentId>,
}

impl ReadySegments {
    pub fn count(&self) -> u32 {
        self.recycled() + self.fresh.len() as u32
    }

    /// Returns the number of segments that were written before.
    pub fn recycled(&self) -> u32 {
        self.recycled.len() as u32
    }

    pub fn add_fresh(&mut self, number: SegmentId) {
        self.fresh.push_back(number);
    }

    pub fn add_recycled(&mut self, number: SegmentId) {
        self.recycled.push_back(number);
    }

    /// Takes the segment to open now.
    pub fn take(&mut self) -> Option<SegmentId> {
        self.recycled.pop_front().or_else(|| self.fresh.pop_front())
    }

    /// Takes `count` segments to deallocate, the fresh ones first.
    pub fn release(&mut self, count: u32) -> Vec<SegmentId> {
        let fresh = (count as usize).min(self.fresh.len());
        let recycled = (count as usize - fresh).min(self.recycled.len());
        self.fresh.drain(..fresh).chain(self.recycled.drain(..recycled)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recycled_segments_are_opened_first_and_given_back_last() {
        let ids = |numbers: &[u32]| -> Vec<SegmentId> {
            numbers.iter().copied().map(SegmentId::new).collect()
        };
        let mut ready = ReadySegments::default();
        ids(&[1, 2, 3]).into_iter().for_each(|number| ready.add_fresh(number));
        ids(&[9, 7, 8, 6]).into_iter().for_each(|number| ready.add_recycled(number));
        assert_eq!((ready.count(), ready.recycled()), (7, 4));
        assert_eq!(
            (ready.take(), ready.take()),
            (Some(SegmentId::new(9)), Some(SegmentId::new(7)))
        );
        assert_eq!(ready.release(2), ids(&[1, 2]));
        assert_eq!(ready.release(2), ids(&[3, 8]));
        assert_eq!(ready.take(), Some(SegmentId::new(6)));
        assert_eq!((ready.take(), ready.release(3)), (None, vec![]));
    }
}
