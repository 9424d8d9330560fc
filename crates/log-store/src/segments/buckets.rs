//! The segments that may be cleaned, in buckets by their share of live blocks: a victim is found by
//! a look at the oldest of each, not at all of them.
//!
//! An overwritten block costs a comparison of two buckets, which is nearly always all. A segment
//! moves once per sixteenth of it that dies: two changes of a tree, or about 1 ns per block where
//! a segment is 32 MiB, and 20 ns where it is 1 MiB.

use std::collections::BTreeSet;
use std::ops::Bound;

use flowstone_log_format::{LIFETIME_GUEST_MAX, LIFETIME_MAP, LIFETIME_SORTED, SegmentId, Shape};

use super::segment::{Segment, State};
use super::{LOOK_MOST, SegmentTable};

/// Kinds of segments that are looked for apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Records of guests.
    Guests,
    /// Copies by the cleaner.
    Copies,
    /// Copies in the order of the disk.
    Sorted,
    /// Leaves and roots of the map.
    Map,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Guests, Self::Copies, Self::Sorted, Self::Map];

    const fn of(segment: &Segment) -> Self {
        match segment.lifetime {
            ..=LIFETIME_GUEST_MAX => Self::Guests,
            LIFETIME_SORTED => Self::Sorted,
            LIFETIME_MAP => Self::Map,
            _ => Self::Copies,
        }
    }
}

/// Buckets of a kind: one segment of each bucket can be looked at in one hold of the log's lock.
const BUCKETS: u32 = (LOOK_MOST / Kind::ALL.len()) as u32;

/// The place of a segment among all candidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    kind: Kind,
    bucket: u32,
    sealed: u64,
    number: SegmentId,
}

impl Place {
    const fn start_of(kind: Kind, bucket: u32) -> Self {
        Self { kind, bucket, sealed: 0, number: SegmentId::SUPERBLOCKS }
    }
}

/// See the module.
pub struct Buckets {
    /// Live blocks from which on a segment is too full to be cleaned: one of blocks, one of maps.
    full: [u32; 2],
    places: BTreeSet<Place>,
}

impl Buckets {
    pub fn new(shape: Shape) -> Self {
        let full = [shape.data_blocks_most(), shape.data_blocks_packed()];
        let full = full.map(|blocks| blocks.saturating_sub(shape.cleaning_gain_min()).max(1));
        Self { full, places: BTreeSet::new() }
    }

    fn full(&self, kind: Kind) -> u32 {
        self.full[usize::from(kind == Kind::Map)]
    }

    /// Returns whether cleaning frees enough; the space of headers does not count, since copies
    /// have headers too.
    pub fn is_worth_cleaning(&self, segment: &Segment) -> bool {
        segment.state == State::Sealed
            && !segment.damaged
            && segment.live < self.full(Kind::of(segment))
    }

    fn place(&self, number: SegmentId, segment: &Segment) -> Option<Place> {
        if !self.is_worth_cleaning(segment) {
            return None;
        }
        let kind = Kind::of(segment);
        let bucket = segment.live * BUCKETS / self.full(kind);
        Some(Place { kind, bucket, sealed: segment.sealed, number })
    }

    pub fn change(&mut self, number: SegmentId, from: &Segment, to: &Segment) {
        let (from, to) = (self.place(number, from), self.place(number, to));
        if from != to {
            from.map(|place| self.places.remove(&place));
            to.map(|place| self.places.insert(place));
        }
    }

    /// Returns the oldest segment of each bucket.
    fn heads(&self, kind: Kind) -> impl Iterator<Item = Place> {
        let mut bucket = 0;
        std::iter::from_fn(move || {
            let rest = Place::start_of(kind, bucket)..Place::start_of(kind, BUCKETS);
            let head = *self.places.range(rest).next()?;
            bucket = head.bucket + 1;
            Some(head)
        })
    }

    /// Returns the next younger segment in the bucket.
    fn after(&self, place: Place) -> Option<Place> {
        let end = Place::start_of(place.kind, place.bucket + 1);
        self.places.range((Bound::Excluded(place), Bound::Excluded(end))).next().copied()
    }

    /// Returns the fewest live blocks of the segments in the bucket.
    fn fewest(&self, place: Place) -> u32 {
        (place.bucket * self.full(place.kind)).div_ceil(BUCKETS)
    }

    /// Checks that these are the candidates of a table.
    pub fn audit(&self, segments: impl Iterator<Item = (SegmentId, Segment)>) {
        let places: BTreeSet<Place> =
            segments.filter_map(|(number, segment)| self.place(number, &segment)).collect();
        assert_eq!(self.places, places, "segments by bucket");
    }
}

impl SegmentTable {
    /// Returns whether cleaning the segment frees enough.
    pub fn is_worth_cleaning(&self, segment: &Segment) -> bool {
        self.buckets.is_worth_cleaning(segment)
    }

    /// Looks for the segments with the best scores among those of these kinds that are worth
    /// cleaning. `score`, of live blocks and the clock at the seal, must not be lower where either
    /// is lower. `look` returns whether the segment is eligible.
    ///
    /// Looks at the oldest of each bucket, then, where the scores of a bucket may still be better
    /// than the best, at younger ones: at 64 in all. If that proves the best score, it is exact;
    /// else the best is found among those, and a better one has at most the sixteenth of a segment
    /// fewer live blocks than an older one that was seen.
    pub fn search(
        &self,
        kinds: &[Kind],
        score: impl Fn(u32, u64) -> f64,
        mut look: impl FnMut(SegmentId, Segment) -> bool,
    ) {
        let heads = kinds.iter().flat_map(|kind| self.buckets.heads(*kind));
        let mut fronts: Vec<(f64, Place)> = heads.map(|head| (f64::INFINITY, head)).collect();
        let mut best = f64::NEG_INFINITY;
        for _ in 0..LOOK_MOST {
            let bound = |at: &usize| fronts[*at].0;
            let highest = (0..fronts.len()).max_by(|a, b| bound(a).total_cmp(&bound(b)));
            let Some(at) = highest.filter(|at| bound(at) > best) else { return };
            let place = fronts[at].1;
            let segment = self.get(place.number);
            if look(place.number, segment) {
                best = best.max(score(segment.live, segment.sealed));
            }
            match self.buckets.after(place) {
                Some(next) => {
                    fronts[at] = (score(self.buckets.fewest(next), next.sealed), next);
                }
                None => drop(fronts.swap_remove(at)),
            }
        }
    }

    /// Returns a few map segments that are worth cleaning, bucket by bucket, beginning behind one
    /// of them.
    pub fn few_sparse_maps(&self, behind: Option<SegmentId>) -> Vec<(SegmentId, Segment)> {
        let place = |number| self.buckets.place(number, &self.get(number));
        let start = behind.map_or(Some(Place::start_of(Kind::Map, 0)), place);
        let behind = start.map(|start| (Bound::Excluded(start), Bound::Unbounded));
        let places = behind.into_iter().flat_map(|behind| self.buckets.places.range(behind));
        places.take(LOOK_MOST - 1).map(|place| (place.number, self.get(place.number))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;

    /// A table of segments of all kinds, with any number of live blocks, that have changed since.
    fn filled(random: &mut Rng, shape: Shape, count: u32) -> SegmentTable {
        let mut table = SegmentTable::new(shape, count + 1, 1);
        let clocks = if random.bool() { 1 << 20 } else { 20 };
        for number in SegmentId::range(1..count + 1) {
            let lifetime = random.u8(..=LIFETIME_MAP);
            let live = random.u32(..shape.segment_blocks);
            let (sealed, damaged) = (random.u64(..clocks), random.u8(..20) == 0);
            let state = if random.u8(..20) == 0 { State::Open } else { State::Sealed };
            let segment = Segment { state, lifetime, damaged, live, sealed, ..Segment::default() };
            table.set(number, segment);
        }
        table.rebuild_lists();
        for _ in 0..4 * count {
            let number = SegmentId::new(random.u32(1..=count));
            let live = table.get(number).live;
            match random.u8(..12) {
                0 => table.gain(number, shape.segment_blocks - live),
                1 => table.mark_damaged(number),
                _ if live > 0 => table.lose_many(number, random.u32(1..=live.min(20))),
                _ => {}
            }
        }
        table.audit();
        table
    }

    #[test]
    fn the_best_of_the_buckets_is_the_best_of_all_segments_where_a_search_is_exact() {
        let (mut exact, mut others) = (0, 0);
        for seed in 0..300 {
            let mut random = Rng::with_seed(seed);
            let segment_blocks = [64, 256, 1000, 8192][random.usize(..4)];
            let shape = Shape { segment_blocks, reserve_percent: 20, streams: 1 };
            let count = [1, 30, 300, 3000][random.usize(..4)];
            let table = filled(&mut random, shape, count);
            let power = [0.0, 0.5, 1.0][random.usize(..3)];
            // Benefit over cost, as the cleaner has it.
            let score = |live: u32, sealed: u64| {
                let u = f64::from(live) / f64::from(shape.data_blocks_most());
                (1.0 - u) * (((1 << 20) - sealed).max(1) as f64).powf(power) / (1.0 + u)
            };
            let kinds = if random.bool() { &Kind::ALL[..] } else { &[Kind::Copies, Kind::Map] };
            let except = SegmentId::new(random.u32(..=count));
            let (mut looks, mut best, mut heads) = (0, f64::NEG_INFINITY, BTreeSet::new());
            table.search(kinds, score, |number, segment| {
                assert!(table.is_worth_cleaning(&segment) && kinds.contains(&Kind::of(&segment)));
                looks += 1;
                heads.insert(table.buckets.place(number, &segment).map(|it| (it.kind, it.bucket)));
                if number != except {
                    best = best.max(score(segment.live, segment.sealed));
                }
                number != except
            });
            assert!(looks <= LOOK_MOST);
            let all = table
                .iter()
                .filter(|(_, it)| table.is_worth_cleaning(it) && kinds.contains(&Kind::of(it)));
            for (number, segment) in all {
                let place = table.buckets.place(number, &segment).map(|it| (it.kind, it.bucket));
                assert!(
                    heads.contains(&place),
                    "seed {seed}: no segment of {place:?} was looked at"
                );
                let width = table.buckets.full(Kind::of(&segment)).div_ceil(BUCKETS);
                let slack = if looks < LOOK_MOST { 0 } else { width };
                let least = score(segment.live + slack, segment.sealed);
                assert!(
                    number == except || best >= least,
                    "seed {seed}: {number} {segment:?} {best:?}"
                );
            }
            if looks < LOOK_MOST { exact += 1 } else { others += 1 }
        }
        assert!(exact > 100 && others > 10, "{exact} exact searches, {others} others");
    }

    #[test]
    fn sparse_maps_are_handed_out_a_few_at_a_time_and_all_of_them() {
        let shape = Shape { segment_blocks: 256, reserve_percent: 20, streams: 1 };
        let table = filled(&mut Rng::with_seed(7), shape, 3000);
        let mut found = Vec::new();
        loop {
            let few = table.few_sparse_maps(found.last().copied());
            assert!(few.len() < LOOK_MOST);
            if few.is_empty() {
                break;
            }
            found.extend(few.into_iter().map(|(number, _)| number));
        }
        found.sort_unstable();
        let is_sparse = |it: &Segment| it.lifetime == LIFETIME_MAP && table.is_worth_cleaning(it);
        let all = table.iter().filter(|(_, it)| is_sparse(it)).map(|(number, _)| number);
        assert_eq!(found, all.collect::<Vec<_>>());
        assert!(found.len() > 2 * LOOK_MOST, "{}", found.len());
    }
}
