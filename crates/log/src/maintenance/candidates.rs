//! Segments that may be cleaned.

use flowstone_log_format::SegmentId;
use flowstone_log_store::segments::{Kind, Segment};

use crate::log::Log;

/// A segment, and its state when it was chosen. It may change at once, but only this thread frees
/// it.
pub type Chosen = (SegmentId, Segment);

/// Returns the segment with the fewest live blocks of those of these kinds that are worth cleaning:
/// the emptiest of the few that are looked at in the emptiest bucket.
pub fn emptiest(log: &Log, kinds: &[Kind]) -> Option<Chosen> {
    let mut best: Option<Chosen> = None;
    let score = |live, _| -f64::from(live);
    log.append_state().segments().search(kinds, score, |number, segment| {
        if best.is_none_or(|(_, it)| segment.live < it.live) {
            best = Some((number, segment));
        }
        true
    });
    best
}
