//! Selects the next segment to clean, and the lifetime class of its live blocks. Pure: numbers in,
//! numbers out.

use flowstone_log_format::{
    LIFETIME_CLEANED, LIFETIME_COLD, LIFETIME_COOL, LIFETIME_GUEST_MAX, LIFETIME_WARM,
};

/// A segment that may be cleaned.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    /// Live blocks.
    pub live: u32,
    /// Blocks that a segment full of copies holds.
    pub blocks: u32,
    /// Guest blocks written since the segment was sealed.
    pub age: u64,
}

/// Exponent of the age of a segment in its score. With the age itself, as in LFS, a simulation of
/// this log copies 15 to 30 % more under skew (zipf .99, 80/20) and 5 % more where all blocks are
/// alike: it picks old segments that would have emptied further. Exponents of 0.35 to 0.6 do as
/// well as this one; 0 is greedy, which never cleans cold segments.
pub const AGE_POWER: f64 = 0.5;

impl Candidate {
    /// Returns benefit over cost of cleaning this segment now, as in LFS (Rosenblum 1991, section
    /// 3.5): space freed times how long it will stay free, over reading the segment and writing its
    /// live blocks.
    pub fn score(&self, age_power: f64) -> f64 {
        let u = f64::from(self.live) / f64::from(self.blocks);
        (1.0 - u) * (self.age.max(1) as f64).powf(age_power) / (1.0 + u)
    }
}

/// Classifies copies by expected lifetime (after SepBIT, FAST'22): blocks that survived together
/// die together.
#[derive(Clone, Copy, Debug)]
pub struct Lifetimes {
    /// Running mean of the age at which segments of guest data are cleaned, in guest blocks
    /// written.
    typical: f64,
    /// The coldest class that is used.
    coldest: u8,
}

impl Default for Lifetimes {
    fn default() -> Self {
        Self { typical: 0.0, coldest: LIFETIME_COLD }
    }
}

impl Lifetimes {
    /// Keeps copies in this many classes, the first of them: at least one, at most all.
    pub fn limit(&mut self, count: u8) {
        self.coldest = (LIFETIME_GUEST_MAX + count).clamp(LIFETIME_CLEANED, LIFETIME_COLD);
    }

    /// Returns the class for the live blocks of a victim of this class and age.
    pub fn lifetime_for(&mut self, victim: u8, age: u64) -> u8 {
        let age = age as f64;
        if victim <= LIFETIME_GUEST_MAX {
            self.typical = if self.typical == 0.0 { age } else { self.typical * 0.9 + age * 0.1 };
            return LIFETIME_CLEANED;
        }
        let class = if age < 4.0 * self.typical {
            LIFETIME_WARM
        } else if age < 16.0 * self.typical {
            LIFETIME_COOL
        } else {
            LIFETIME_COLD
        };
        class.min(self.coldest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cost_benefit_takes_an_old_full_segment_before_a_young_emptier_one() {
        let old = Candidate { live: 80, blocks: 100, age: 1000 };
        let young = Candidate { live: 50, blocks: 100, age: 100 };
        assert!(old.score(AGE_POWER) > young.score(AGE_POWER));
        assert!(old.score(0.0) < young.score(0.0));
        let dead = Candidate { live: 0, ..old };
        assert!(dead.score(AGE_POWER) > old.score(AGE_POWER));
    }

    #[test]
    fn survivors_move_to_colder_classes() {
        let mut lifetimes = Lifetimes::default();
        assert_eq!(lifetimes.lifetime_for(0, 100), LIFETIME_CLEANED);
        assert_eq!(lifetimes.lifetime_for(LIFETIME_CLEANED, 300), LIFETIME_WARM);
        assert_eq!(lifetimes.lifetime_for(LIFETIME_WARM, 1500), LIFETIME_COOL);
        assert_eq!(lifetimes.lifetime_for(LIFETIME_COOL, 1700), LIFETIME_COLD);
        for (count, class) in [(1, LIFETIME_CLEANED), (2, LIFETIME_WARM), (3, LIFETIME_COOL)] {
            lifetimes.limit(count);
            assert_eq!(lifetimes.lifetime_for(LIFETIME_COOL, 1700), class);
        }
    }
}
