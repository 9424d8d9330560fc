//! Selection of segments to clean.

use flowstone_log_format::SegmentId;

use super::Maintenance;
use crate::policy::{AGE_POWER, Candidate, LIFETIME_MAP};
use crate::segments::{LOOK_MOST, Segment, State};

/// Inverse of the maximum share of live blocks in segments that are cleaned while guests are quiet.
const SPARSE_PART: u32 = 3;

impl Maintenance {
    /// Returns the segment with the fewest live blocks, if few enough, unless cleaning it has
    /// failed.
    pub fn sparsest(&self) -> Option<(SegmentId, Segment)> {
        let most = self.core.shape.data_blocks_packed() / SPARSE_PART;
        if self.sparse_tried == Some(self.core.append_state().committed()) {
            return None;
        }
        let is_sparse = |segment: &Segment| {
            segment.state == State::Sealed
                && !segment.damaged
                && segment.lifetime != LIFETIME_MAP
                && (1..=most).contains(&segment.live)
        };
        let mut best = None;
        self.look_through(|number, segment| {
            if is_sparse(&segment)
                && best.is_none_or(|(_, it): (_, Segment)| segment.live < it.live)
            {
                best = Some((number, segment));
            }
        });
        best
    }

    /// Calls `look` for each segment that has been used, a few per hold of the log's lock: an image
    /// of 1 TiB has 32,768. Earlier ones may have changed by the end, but only this thread frees
    /// them.
    pub fn look_through(&self, mut look: impl FnMut(SegmentId, Segment)) {
        let mut next = 1;
        loop {
            let state = self.core.append_state();
            let few = state.segments.few_from(SegmentId::new(next));
            let seen = few.map(|(number, segment)| look(number, segment)).count();
            if seen < LOOK_MOST {
                return;
            }
            next += seen as u32;
        }
    }

    /// Returns the victim with the best score. While a stream is being filled, prefers victims
    /// whose blocks belong in it, as long as one of them is worth cleaning: a stream is written
    /// without a break.
    pub fn choose_victim(&self) -> Option<(SegmentId, Segment)> {
        self.choose_victim_but(None)
    }

    /// Returns the victim with the best score, excluding the one being cleaned.
    pub fn choose_victim_but(&self, except: Option<SegmentId>) -> Option<(SegmentId, Segment)> {
        let blocks = self.core.shape.data_blocks_most();
        let clock = self.core.append_state().clock;
        let age_power = *self.core.age_power.get().unwrap_or(&AGE_POWER);
        let mut best: Option<(f64, (SegmentId, Segment))> = None;
        let mut best_filling: Option<(f64, (SegmentId, Segment))> = None;
        self.look_through(|number, segment| {
            if Some(number) == except || !self.is_worth_cleaning(&segment) {
                return;
            }
            let age = clock.saturating_sub(segment.sealed);
            let score = Candidate { live: segment.live, blocks, age }.score(age_power);
            let found = Some((score, (number, segment)));
            if best.is_none_or(|(top, _)| score > top) {
                best = found;
            }
            let goes_along = self.filling.is_some_and(|filling| {
                let mut lifetimes = self.lifetimes;
                let age = clock.saturating_sub(segment.birth);
                lifetimes.lifetime_for(segment.lifetime, age) == filling
            });
            if goes_along && best_filling.is_none_or(|(top, _)| score > top) {
                best_filling = found;
            }
        });
        let (top, found) = best?;
        match best_filling {
            Some((score, along)) if score * 2.0 >= top => Some(along),
            _ => Some(found),
        }
    }

    /// Returns whether cleaning frees enough; the space of headers does not count, since copies
    /// have headers too.
    pub fn is_worth_cleaning(&self, segment: &Segment) -> bool {
        let shape = self.core.shape;
        let full = match segment.lifetime {
            LIFETIME_MAP => shape.data_blocks_packed(),
            _ => shape.data_blocks_most(),
        };
        segment.state == State::Sealed
            && !segment.damaged
            && segment.live + shape.cleaning_gain_min() < full
    }

    /// Marks the live leaves of sparse map segments, so that the next checkpoint writes them
    /// elsewhere; all at once, since each checkpoint also writes a root, which in a segment of its
    /// own would gain nothing. Returns the segments.
    pub fn outdate_sparse_map(&mut self) -> Vec<SegmentId> {
        let most = self.core.append_state().reserve(&self.core.map, true).leaves;
        let mut sparse = Vec::new();
        self.look_through(|number, segment| {
            if segment.lifetime == LIFETIME_MAP && self.is_worth_cleaning(&segment) {
                sparse.push((segment.live, number));
            }
        });
        sparse.sort_unstable();
        let mut chosen = Vec::new();
        for (_, victim) in sparse {
            self.outdate_map_segment(victim);
            chosen.push(victim);
            if u64::from(self.core.map.changed_count()) >= most {
                break;
            }
        }
        chosen
    }

    /// Marks the leaves in a map segment as changed, so that the next checkpoint writes them
    /// elsewhere; the root moves with every checkpoint.
    pub fn outdate_map_segment(&mut self, victim: SegmentId) {
        for (leaf, (address, _)) in &self.leaves {
            if self.core.shape.segment_of(*address) == victim {
                self.core.map.touch(*leaf);
            }
        }
    }
}
