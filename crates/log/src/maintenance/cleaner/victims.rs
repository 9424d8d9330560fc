//! Selection of segments to clean.

use flowstone_log_format::SegmentId;
use flowstone_log_store::segments::Kind;

use super::Cleaner;
use crate::maintenance::candidates::{Chosen, emptiest};
use crate::policy::{AGE_POWER, Candidate};

/// Inverse of the maximum share of live blocks in segments that are cleaned while guests are quiet.
const SPARSE_PART: u32 = 3;

impl Cleaner {
    /// Returns the segment with the fewest live blocks, if few enough, unless cleaning it has
    /// failed.
    pub fn sparsest(&self) -> Option<Chosen> {
        let most = self.log.shape.data_blocks_packed() / SPARSE_PART;
        if self.sparse_tried == Some(self.log.append_state().committed()) {
            return None;
        }
        let found = emptiest(&self.log, &[Kind::Guests, Kind::Copies, Kind::Sorted]);
        found.filter(|(_, segment)| segment.live <= most)
    }

    /// Returns the victim with the best score. While a stream is being filled, prefers victims
    /// whose blocks belong in it, as long as one of them is worth cleaning: a stream is written
    /// without a break.
    pub fn choose_victim(&self) -> Option<Chosen> {
        self.choose_victim_but(None)
    }

    /// Returns the victim with the best score, excluding the one being cleaned. The best score is
    /// exact as far as [`search`](flowstone_log_store::segments::SegmentTable::search) says; the
    /// best of those that belong in the stream is the best of those that it looks at, which has the
    /// oldest of each bucket.
    pub fn choose_victim_but(&self, except: Option<SegmentId>) -> Option<Chosen> {
        let blocks = self.log.shape.data_blocks_most();
        let age_power = *self.log.age_power.get().unwrap_or(&AGE_POWER);
        let state = self.log.append_state();
        let clock = state.accounting().clock();
        let score = |live, sealed| {
            let age = clock.saturating_sub(sealed);
            Candidate { live, blocks, age }.score(age_power)
        };
        let mut best: Option<(f64, Chosen)> = None;
        let mut best_filling: Option<(f64, Chosen)> = None;
        state.segments().search(&Kind::ALL, score, |number, segment| {
            if Some(number) == except {
                return false;
            }
            let found = (score(segment.live, segment.sealed), (number, segment));
            let is_better = |best: Option<(f64, Chosen)>| best.is_none_or(|(top, _)| found.0 > top);
            if is_better(best) {
                best = Some(found);
            }
            let goes_along = self.filling.is_some_and(|filling| {
                let mut lifetimes = self.lifetimes;
                let age = clock.saturating_sub(segment.birth);
                lifetimes.lifetime_for(segment.lifetime, age) == filling
            });
            if goes_along && is_better(best_filling) {
                best_filling = Some(found);
            }
            true
        });
        let (top, found) = best?;
        match best_filling {
            Some((score, along)) if score * 2.0 >= top => Some(along),
            _ => Some(found),
        }
    }
}
