//! Blocks drawn by Zipf's law: the frequency of the block of rank r is proportional to 1 / r^s.
//!
//! Ranks are scattered over the blocks, since hot blocks of a disk are not adjacent: rank r is
//! block r * step modulo the number of blocks. The step is coprime to that number, so every block
//! has one rank, and close to its golden section, which keeps consecutive ranks far apart.

use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand_distr::{Distribution, Zipf};

/// An endless sequence of blocks.
#[derive(Debug)]
pub(super) struct ZipfBlocks {
    law: Zipf<f64>,
    random: SmallRng,
    blocks: u64,
    step: u64,
}

impl ZipfBlocks {
    /// Makes a sequence of blocks below `blocks`, which is at least 1; the exponent is not
    /// negative.
    pub(super) fn new(blocks: u64, exponent: f64, seed: u64) -> Self {
        let law = Zipf::new(blocks as f64, exponent)
            .expect("the plan has checked the exponent and found blocks");
        let random = SmallRng::seed_from_u64(seed);
        ZipfBlocks { law, random, blocks, step: step(blocks) }
    }

    /// Returns the next block.
    #[inline]
    pub(super) fn block(&mut self) -> u64 {
        let rank = (self.law.sample(&mut self.random) as u64).clamp(1, self.blocks) - 1;
        (u128::from(rank) * u128::from(self.step) % u128::from(self.blocks)) as u64
    }
}

/// Returns the first number from the golden section of `blocks` up that is coprime to it.
fn step(blocks: u64) -> u64 {
    let section = (blocks as f64 * 0.618_033_988_749_895) as u64;
    (section.max(1)..).find(|&step| common_factor(step, blocks) == 1).expect("primes do not end")
}

fn common_factor(mut one: u64, mut other: u64) -> u64 {
    while other != 0 {
        (one, other) = (other, one % other);
    }
    one
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCKS: u64 = 1000;
    const DRAWS: usize = 400_000;

    fn counts(exponent: f64) -> Vec<usize> {
        let mut source = ZipfBlocks::new(BLOCKS, exponent, 7);
        let mut counts = vec![0; BLOCKS as usize];
        (0..DRAWS).for_each(|_| counts[source.block() as usize] += 1);
        counts
    }

    /// The hottest block has 1 / H of all draws, where H is the sum of 1 / r^s over all ranks; the
    /// tenth hottest 10^s times fewer.
    #[test]
    fn frequencies_follow_the_law() {
        let mut counts = counts(0.99);
        counts.sort_unstable_by(|one, other| other.cmp(one));
        let sum: f64 = (1..=BLOCKS).map(|rank| (rank as f64).powf(-0.99)).sum();
        for rank in [1_usize, 2, 10, 100] {
            let expected = DRAWS as f64 * (rank as f64).powf(-0.99) / sum;
            let ratio = counts[rank - 1] as f64 / expected;
            assert!((0.85..1.15).contains(&ratio), "rank {rank}: {ratio:.2} of what is expected");
        }
    }

    #[test]
    fn exponent_zero_is_uniform() {
        let counts = counts(0.0);
        let mean = DRAWS / BLOCKS as usize;
        assert!(counts.iter().all(|&count| (mean / 2..mean * 2).contains(&count)));
    }

    #[test]
    fn every_block_has_one_rank() {
        for blocks in [1, 2, 3, 10, 4096, 6007] {
            let step = step(blocks);
            let mut seen: Vec<u64> = (0..blocks).map(|rank| rank * step % blocks).collect();
            seen.sort_unstable();
            assert!(seen.into_iter().eq(0..blocks), "{blocks} blocks, step {step}");
        }
    }

    /// The ten hottest blocks of a thousand are in ten different parts of it, at least 20 blocks
    /// apart.
    #[test]
    fn hot_blocks_are_scattered() {
        let step = step(BLOCKS);
        let mut hot: Vec<u64> = (0..10).map(|rank| rank * step % BLOCKS).collect();
        hot.sort_unstable();
        assert!(hot.windows(2).all(|pair| pair[1] - pair[0] >= 20), "{hot:?}");
    }
}
