//! Segments that may be cleaned.

use flowstone_log_format::{LIFETIME_MAP, SegmentId, Shape};

use crate::log::Log;
use crate::log::segments::{LOOK_MOST, Segment, State};

/// A segment, and its state when it was chosen.
pub type Chosen = (SegmentId, Segment);

/// Calls `look` for each segment that has been used, a few per hold of the log's lock: an image
/// of 1 TiB has 32,768. Earlier ones may have changed by the end, but only this thread frees
/// them.
pub fn look_through(log: &Log, mut look: impl FnMut(SegmentId, Segment)) {
    let mut next = 1;
    loop {
        let state = log.append_state();
        let few = state.segments().few_from(SegmentId::new(next));
        let seen = few.map(|(number, segment)| look(number, segment)).count();
        if seen < LOOK_MOST {
            return;
        }
        next += seen as u32;
        drop(state);
        // Guests of a test may go on here.
        #[cfg(test)]
        crate::tests::run_hook();
    }
}

/// Returns the segment with the fewest live blocks of those that `fits` accepts.
pub fn emptiest(log: &Log, fits: impl Fn(&Segment) -> bool) -> Option<Chosen> {
    let mut best: Option<Chosen> = None;
    look_through(log, |number, segment| {
        if fits(&segment) && best.is_none_or(|(_, it)| segment.live < it.live) {
            best = Some((number, segment));
        }
    });
    best
}

/// Returns whether cleaning frees enough; the space of headers does not count, since copies
/// have headers too.
pub fn is_worth_cleaning(shape: Shape, segment: &Segment) -> bool {
    let full = match segment.lifetime {
        LIFETIME_MAP => shape.data_blocks_packed(),
        _ => shape.data_blocks_most(),
    };
    segment.state == State::Sealed
        && !segment.damaged
        && segment.live + shape.cleaning_gain_min() < full
}
