//! The segments by number.
//!
//! Queues wait for the log's lock, so no hold of it may walk over all segments: with 1 TiB there
//! are 32,768. Debug builds count the segments that a hold looks at.

#[cfg(debug_assertions)]
use std::{cell::RefCell, collections::BTreeSet};

use flowstone_log_format::SegmentId;

use super::segment::Segment;

/// Maximum number of segments looked at in one hold of the log's lock.
pub const LOOK_MOST: usize = 64;

/// See the module.
pub struct Slots {
    /// Grows to the highest number ever used, so an empty image needs no memory for it.
    all: Vec<Segment>,
    #[cfg(debug_assertions)]
    looked_at: RefCell<BTreeSet<SegmentId>>,
}

impl Slots {
    /// Slots with segment 0 alone.
    pub fn new(first: Segment) -> Self {
        Self {
            all: vec![first],
            #[cfg(debug_assertions)]
            looked_at: RefCell::default(),
        }
    }

    /// Returns the lowest number that has never been used.
    pub fn len(&self) -> u32 {
        self.all.len() as u32
    }

    fn note(&self, number: SegmentId) {
        #[cfg(debug_assertions)]
        self.looked_at.borrow_mut().insert(number);
        let _ = number;
    }

    /// Returns a segment.
    pub fn get(&self, number: SegmentId) -> Segment {
        self.note(number);
        self.all.get(number.index()).copied().unwrap_or_default()
    }

    /// Returns a segment, to change it.
    pub fn get_mut(&mut self, number: SegmentId) -> &mut Segment {
        self.note(number);
        while self.all.len() <= number.index() {
            self.all.push(Segment::default());
        }
        &mut self.all[number.index()]
    }

    /// Returns a segment, for what a commit changes. This is not a look: a record is committed in
    /// one hold, whatever segments its blocks lived in, and so are all that waited for it.
    pub fn of_commit(&mut self, number: SegmentId) -> &mut Segment {
        &mut self.all[number.index()]
    }

    /// Iterates over the segments with their numbers, for the open and for checks: these are no
    /// looks.
    pub fn iter(&self) -> impl Iterator<Item = (SegmentId, Segment)> {
        (0..).map(SegmentId::new).zip(self.all.iter().copied())
    }

    /// Returns the number of segments looked at since the last call.
    #[cfg(debug_assertions)]
    pub fn take_looks(&mut self) -> usize {
        std::mem::take(self.looked_at.get_mut()).len()
    }
}
