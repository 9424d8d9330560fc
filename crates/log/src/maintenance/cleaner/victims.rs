//! Selection of segments to clean.

use flowstone_log_format::{LIFETIME_MAP, SegmentId};

use super::Cleaner;
use crate::log::segments::{Segment, State};
use crate::maintenance::candidates::{Chosen, emptiest, is_worth_cleaning, look_through};
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
        emptiest(&self.log, |segment| {
            segment.state == State::Sealed
                && !segment.damaged
                && segment.lifetime != LIFETIME_MAP
                && (1..=most).contains(&segment.live)
        })
    }

    /// Returns the victim with the best score. While a stream is being filled, prefers victims
    /// whose blocks belong in it, as long as one of them is worth cleaning: a stream is written
    /// without a break.
    pub fn choose_victim(&self) -> Option<Chosen> {
        self.choose_victim_but(None)
    }

    /// Returns the victim with the best score, excluding the one being cleaned.
    pub fn choose_victim_but(&self, except: Option<SegmentId>) -> Option<Chosen> {
        let blocks = self.log.shape.data_blocks_most();
        let clock = self.log.append_state().accounting().clock();
        let age_power = *self.log.age_power.get().unwrap_or(&AGE_POWER);
        let mut best: Option<(f64, (SegmentId, Segment))> = None;
        let mut best_filling: Option<(f64, (SegmentId, Segment))> = None;
        look_through(&self.log, |number, segment| {
            if Some(number) == except || !is_worth_cleaning(self.log.shape, &segment) {
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
}
