//! Estimated hit ratio of caches of other sizes: LRU's miss-ratio curve, from a sample of the files
//! (Waldspurger et al., SHARDS, FAST 2015).

use std::collections::{BTreeMap, HashMap};

use crate::{Access, FileId, Use};

/// One file in this many is sampled.
const SAMPLE: u64 = 8;
/// Most sampled files that are remembered: a use costs the sum over later ones.
const FILES_MAX: usize = 4096;
/// Decay per read of the sample: the half-life is 2,048 reads.
const FADE: f64 = std::f64::consts::LN_2 / 2048.0;
/// Least reads of the sample for a curve.
const READS_MIN: f64 = 64.0;
/// Number of points of a curve.
pub const POINTS: usize = 8;

/// An estimator of the curve.
#[derive(Debug)]
pub struct Curve {
    /// The cache size of the last point.
    bytes_max: u64,
    /// Sampled files by their last use, with their sizes.
    used: BTreeMap<u64, (FileId, u64)>,
    last: HashMap<FileId, u64>,
    clock: u64,
    /// Sampled reads by the smallest size of a point whose cache would have had a hit.
    hits: [f64; POINTS],
    reads: f64,
    /// Reads of all files, with the same half-life in time.
    of_all: f64,
}

impl Curve {
    /// Makes an estimator for sizes up to `bytes_max`.
    pub fn new(bytes_max: u64) -> Self {
        Self {
            bytes_max,
            used: BTreeMap::new(),
            last: HashMap::new(),
            clock: 0,
            hits: [0.0; POINTS],
            reads: 0.0,
            of_all: 0.0,
        }
    }

    /// Records a use of a file.
    pub fn used(&mut self, access: &Access) {
        let Access { file, usage, bytes, .. } = *access;
        if usage == Use::Read {
            self.of_all = self.of_all * (1.0 - FADE / SAMPLE as f64) + 1.0;
        }
        if !file.0.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(32).is_multiple_of(SAMPLE) {
            return;
        }
        let before = self.last.get(&file).copied();
        if usage == Use::Read {
            self.read(before);
        }
        if let Some(before) = before {
            self.used.remove(&before);
        }
        self.clock += 1;
        self.used.insert(self.clock, (file, bytes));
        self.last.insert(file, self.clock);
        if self.used.len() > FILES_MAX
            && let Some((_, (oldest, _))) = self.used.pop_first()
        {
            self.last.remove(&oldest);
        }
    }

    fn read(&mut self, before: Option<u64>) {
        self.reads = self.reads * (1.0 - FADE) + 1.0;
        self.hits.iter_mut().for_each(|hits| *hits *= 1.0 - FADE);
        let Some(before) = before else { return };
        let since: u64 = self.used.range(before..).map(|(_, (_, bytes))| bytes).sum();
        // The file itself, and the files used after it: scaled from the sample to all files.
        let needed = since.saturating_mul(SAMPLE);
        let point = needed.saturating_sub(1) / (self.bytes_max / POINTS as u64).max(1);
        if let Some(hits) = self.hits.get_mut(point as usize) {
            *hits += 1.0;
        }
    }

    /// Returns the hit ratios of caches at sizes in equal steps up to the largest; empty while too
    /// few reads were sampled.
    pub fn points(&self) -> Vec<f64> {
        if self.reads < READS_MIN {
            return Vec::new();
        }
        // A frequently used file is in the sample or not: the error in the number of reads is due
        // to such files, and the smallest cache holds them (SHARDS-adj).
        let expected = self.of_all / SAMPLE as f64;
        let mut sum = expected - self.reads;
        let upto = self.hits.iter().map(|hits| {
            sum += hits;
            (sum / expected).clamp(0.0, 1.0)
        });
        upto.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Gdsf, Policy};

    fn access(file: u64, bytes: u64) -> Access {
        Access { file: FileId(file), usage: Use::Read, bytes, uses: 1 }
    }

    #[test]
    fn nothing_is_said_of_what_was_hardly_seen() {
        let mut curve = Curve::new(1 << 20);
        (0..100).for_each(|file| curve.used(&access(file, 4096)));
        assert!(curve.points().is_empty());
    }

    /// Compared with simulated caches of these sizes.
    #[test]
    fn the_curve_is_that_of_lru() {
        const STEP: u64 = 32 << 20;
        let mut curve = Curve::new(STEP * POINTS as u64);
        let mut caches: Vec<_> = (1..=POINTS as u64).map(|at| Gdsf::lru(STEP * at)).collect();
        let mut hits = [0_u32; POINTS];
        let mut state = 7_u64;
        let uses = 200_000;
        let mut drops = Vec::new();
        for _ in 0..uses {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let part = (state >> 40) as f64 / (1_u64 << 24) as f64;
            // The square makes low numbers frequent.
            let file = (part * part * 32_000.0) as u64;
            let access = access(file, 4096 * (1 + file % 7));
            curve.used(&access);
            for (cache, hits) in caches.iter_mut().zip(&mut hits) {
                *hits += u32::from(cache.holds(access.file));
                cache.used(&access, &mut drops);
            }
        }
        for (point, hits) in curve.points().iter().zip(hits) {
            let truth = f64::from(hits) / f64::from(uses);
            assert!((point - truth).abs() < 0.05, "{:?}, {truth}", curve.points());
        }
    }

    #[test]
    fn a_curve_never_falls_and_files_are_forgotten() {
        let mut curve = Curve::new(1 << 20);
        (0..200_000_u64).for_each(|at| curve.used(&access(at * 31 % 50_000, 4096)));
        assert!(curve.used.len() <= FILES_MAX && curve.last.len() == curve.used.len());
        assert!(curve.points().is_sorted());
    }
}
