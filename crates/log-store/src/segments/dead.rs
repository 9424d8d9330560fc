//! Dead segments, and the pinned ones: lists that a checkpoint takes whole, without a walk.

use std::collections::BTreeSet;

use flowstone_block::mutated;
use flowstone_log_format::SegmentId;

use super::SegmentTable;
use super::segment::{Segment, State};

/// Dead segments in order of their death, those that only a checkpoint frees apart.
#[derive(Default)]
pub struct DeadSegments {
    freeable: BTreeSet<(u64, SegmentId)>,
    pinned: BTreeSet<(u64, SegmentId)>,
}

impl DeadSegments {
    pub(super) fn count(&self) -> u32 {
        (self.freeable.len() + self.pinned.len()) as u32
    }

    /// Returns the segments in order of their death. Not for use while others wait for the log's
    /// lock: there may be very many.
    pub fn in_order(self) -> Vec<SegmentId> {
        let all: BTreeSet<_> = self.freeable.into_iter().chain(self.pinned).collect();
        all.into_iter().map(|(_, number)| number).collect()
    }

    pub(super) fn add(&mut self, number: SegmentId, segment: &Segment) {
        let list = if segment.pinned { &mut self.pinned } else { &mut self.freeable };
        list.insert((segment.died, number));
    }

    /// Moves a segment whose pin has changed to the other list. It may be in none: a checkpoint has
    /// taken it.
    fn move_over(&mut self, number: SegmentId, segment: &Segment) {
        let key = (segment.died, number);
        if self.freeable.remove(&key) || self.pinned.remove(&key) {
            self.add(number, segment);
        }
    }

    /// Checks that these are the dead segments of a table, apart from those taken.
    pub(super) fn audit(&self, get: impl Fn(SegmentId) -> Segment) {
        for (list, pinned) in [(&self.freeable, false), (&self.pinned, true)] {
            for (died, number) in list {
                let segment = get(*number);
                let is_there = segment.state == State::Dead && segment.pinned == pinned;
                assert!(is_there && segment.died == *died, "dead segment {number}: {segment:?}");
            }
        }
    }
}

impl SegmentTable {
    /// Buries a segment that is sealed and has no live blocks.
    pub(super) fn bury(&mut self, number: SegmentId) {
        let segment = *self.segments.of_commit(number);
        if segment.live == 0 && segment.state == State::Sealed {
            self.deaths += 1;
            let dead = Segment { state: State::Dead, died: self.deaths, ..segment };
            *self.segments.of_commit(number) = dead;
            self.note_change(number, &segment, &dead);
            self.dead.add(number, &dead);
        }
    }

    /// Returns the number of dead segments.
    pub fn dead_count(&self) -> u32 {
        self.dead.count()
    }

    /// Returns the number of dead segments, and how many of them need no checkpoint.
    pub fn dead(&self) -> (u32, u32) {
        (self.dead_count(), self.dead.freeable.len() as u32)
    }

    /// Takes the segments that are dead now, for a checkpoint that begins now.
    pub fn take_dead(&mut self) -> DeadSegments {
        std::mem::take(&mut self.dead)
    }

    /// Takes the dead segments that are free once everything written until now is durable.
    pub fn take_freeable(&mut self) -> DeadSegments {
        let freeable = std::mem::take(&mut self.dead.freeable);
        let heeds_pins = mutated("log.free.ignores-pins", true, false);
        let pinned =
            if heeds_pins { BTreeSet::new() } else { std::mem::take(&mut self.dead.pinned) };
        DeadSegments { freeable, pinned }
    }

    /// Puts dead segments back: what was to free them did not become durable.
    pub fn keep_dead(&mut self, numbers: &[SegmentId]) {
        for number in numbers {
            let segment = self.get(*number);
            self.dead.add(*number, &segment);
        }
    }

    /// Pins a segment: only a checkpoint frees it from now on.
    pub fn pin(&mut self, number: SegmentId) {
        self.set_pinned(number, true);
    }

    /// Unpins segments: the checkpoint that covers them is durable.
    pub fn unpin(&mut self, numbers: &[SegmentId]) {
        numbers.iter().for_each(|number| self.set_pinned(*number, false));
    }

    fn set_pinned(&mut self, number: SegmentId, pinned: bool) {
        self.change(number, |segment| segment.pinned = pinned);
        let segment = self.get(number);
        self.dead.move_over(number, &segment);
    }

    /// Takes the pinned segments that are closed: a checkpoint that begins now covers them.
    pub fn take_pinned(&mut self) -> Vec<SegmentId> {
        std::mem::take(&mut self.pinned)
    }

    /// Puts pinned segments back: the checkpoint did not become durable.
    pub fn keep_pinned(&mut self, mut numbers: Vec<SegmentId>) {
        numbers.append(&mut self.pinned);
        self.pinned = numbers;
    }
}
