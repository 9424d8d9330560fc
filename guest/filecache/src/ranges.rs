//! Sets of byte ranges of a file: its dirty bytes. Does no I/O.

use std::collections::BTreeMap;

/// Disjoint ranges that do not touch each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges {
    /// Ends by starts.
    ends: BTreeMap<u64, u64>,
    bytes: u64,
}

impl Ranges {
    /// Adds the bytes from `start` to `end`.
    pub fn insert(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let (mut first, mut last) = (start, end);
        while let Some((&from, &to)) = self.ends.range(..=end).next_back() {
            if to < start {
                break;
            }
            self.ends.remove(&from);
            self.bytes -= to - from;
            (first, last) = (first.min(from), last.max(to));
        }
        self.ends.insert(first, last);
        self.bytes += last - first;
    }

    /// Returns the number of bytes from `start` to `end` that are not in the set.
    pub fn missing(&self, start: u64, end: u64) -> u64 {
        let overlaps = self.ends.range(..end).rev().take_while(|(_, to)| **to > start);
        let there: u64 = overlaps.map(|(from, to)| end.min(*to) - start.max(*from)).sum();
        end.saturating_sub(start) - there
    }

    /// Adds all ranges of another set.
    pub fn extend(&mut self, others: &Self) {
        others.iter().for_each(|(start, end)| self.insert(start, end));
    }

    /// Returns the number of bytes in the set.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the ranges in order, as start and end.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ends.iter().map(|(start, end)| (*start, *end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(all: &[(u64, u64)]) -> Ranges {
        let mut ranges = Ranges::default();
        all.iter().for_each(|(start, end)| ranges.insert(*start, *end));
        ranges
    }

    #[test]
    fn ranges_that_touch_or_overlap_become_one() {
        let joined = |all: &[(u64, u64)]| of(all).iter().collect::<Vec<_>>();
        assert_eq!(joined(&[(0, 4), (8, 12)]), [(0, 4), (8, 12)]);
        assert_eq!(joined(&[(0, 4), (8, 12), (4, 8)]), [(0, 12)]);
        assert_eq!(joined(&[(0, 4), (2, 6)]), [(0, 6)]);
        assert_eq!(joined(&[(2, 3), (5, 6), (0, 9)]), [(0, 9)]);
        assert_eq!(joined(&[(0, 9), (2, 3)]), [(0, 9)]);
        assert_eq!(joined(&[(3, 3)]), []);
    }

    #[test]
    fn they_are_what_a_map_of_bytes_says() {
        let mut seed = 1_u64;
        let mut below = |limit: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % limit
        };
        for _ in 0..200 {
            let (mut ranges, mut map) = (Ranges::default(), [false; 64]);
            for _ in 0..10 {
                let start = below(64);
                let end = start + below(65 - start);
                let missing = map[start as usize..end as usize].iter().filter(|it| !**it).count();
                assert_eq!(ranges.missing(start, end), missing as u64);
                ranges.insert(start, end);
                map[start as usize..end as usize].fill(true);
                let dirty = map.iter().filter(|it| **it).count() as u64;
                assert_eq!(ranges.bytes(), dirty);
                let ends: Vec<_> = ranges.iter().collect();
                assert!(ends.is_sorted_by(|one, next| one.1 < next.0), "{ends:?}");
                assert!(ends.iter().all(|(from, to)| (*from..*to).all(|at| map[at as usize])));
            }
        }
    }
}
