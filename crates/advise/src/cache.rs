//! The cache size that pays off: the default policy on the blocks of a trace, at sixteen sizes.

use flowstone_cache::{BLOCK_BYTES, BlockId, FREQ_THRESHOLD, Outcome, PolicyKind};
use flowstone_trace::{Class, Kind, Trace};

/// Number of sizes, in equal steps up to all blocks touched.
const STEPS: usize = 16;
/// Accesses above which a sample of the blocks is used, with a cache smaller by the same factor
/// (SHARDS, Waldspurger et al., FAST'15).
const ACCESSES_MAX: usize = 1 << 20;
/// Hit ratio that a step must add to pay off; the resource monitor grows a cache by the same rule.
const GAIN_MIN: f64 = 0.004;

/// A cache size and its hit ratio.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CacheSize {
    pub bytes: u64,
    /// Hits as a fraction of the blocks read.
    pub hit_ratio: f64,
    /// Hit ratio that the next step would add, and the bytes of a step.
    pub next_gain: f64,
    pub step_bytes: u64,
}

/// Returns the size with the greatest gain over the required gain per step; `None` if no block was
/// read.
pub fn size(trace: &Trace) -> Option<CacheSize> {
    let all = accesses(trace).count();
    let part = all.div_ceil(ACCESSES_MAX).next_power_of_two() as u64;
    let is_sampled = |block: &BlockId| spread(*block).is_multiple_of(part);
    let accesses: Vec<_> = accesses(trace).filter(|(block, _)| is_sampled(block)).collect();
    let mut blocks: Vec<_> = accesses.iter().map(|(block, _)| *block).collect();
    blocks.sort_unstable();
    blocks.dedup();
    let reads = accesses.iter().filter(|(_, is_read)| *is_read).count();
    if reads == 0 {
        return None;
    }
    let step = blocks.len().div_ceil(STEPS);
    let ratio = |steps| match steps {
        0 => 0.0,
        steps => hits(&accesses, step * steps) as f64 / reads as f64,
    };
    let ratios: Vec<f64> = (0..=STEPS).map(ratio).collect();
    // A step without gain may lead to one with gain: a loop fits as a whole or not at all.
    let worth = |steps: &usize| ratios[*steps] - GAIN_MIN * *steps as f64;
    let best = (0..=STEPS)
        .max_by(|one, other| worth(one).total_cmp(&worth(other)).then(other.cmp(one)))?;
    let step_bytes = (step * BLOCK_BYTES) as u64 * part;
    Some(CacheSize {
        bytes: step_bytes * best as u64,
        hit_ratio: ratios[best],
        next_gain: ratios.get(best + 1).map_or(0.0, |next| next - ratios[best]),
        step_bytes,
    })
}

/// Returns the accessed blocks in order, and whether each access was a read. Journals bypass the
/// cache.
fn accesses(trace: &Trace) -> impl Iterator<Item = (BlockId, bool)> {
    let seen = trace.events.iter().filter(|event| {
        let is_access = matches!(event.kind, Kind::Read | Kind::Write | Kind::Access);
        is_access && event.class != Some(Class::Journal)
    });
    seen.flat_map(|event| {
        let is_read = event.kind != Kind::Write;
        event.blocks().map(move |block| (BlockId::of_disk(0, block), is_read))
    })
}

/// Hashes a block, so that neighbours are sampled independently (the multiplier is 2^64 / the
/// golden ratio).
const fn spread(block: BlockId) -> u64 {
    block.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40
}

fn hits(accesses: &[(BlockId, bool)], capacity: usize) -> usize {
    let mut policy = PolicyKind::default().build(capacity, FREQ_THRESHOLD, 0);
    let mut evicted = Vec::new();
    let mut hit = |(block, is_read): &(BlockId, bool)| {
        evicted.clear();
        matches!(policy.access(*block, &mut evicted), Outcome::Hit(_)) && *is_read
    };
    accesses.iter().filter(|access| hit(access)).count()
}

#[cfg(test)]
mod tests {
    use flowstone_trace::Event;

    use super::*;

    /// Half of the reads go to a sixteenth of the blocks.
    #[test]
    fn a_sample_says_what_all_accesses_say() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut block = |blocks: u64| {
            let is_hot = random.bool();
            random.u64(..if is_hot { blocks / 16 } else { blocks })
        };
        let mut of = |reads: usize, blocks: u64| {
            let events = (0..reads).map(|_| Event::new(Kind::Read, block(blocks) * 4096, 4096));
            let trace = Trace { events: events.collect(), ..Trace::default() };
            let size = size(&trace).unwrap();
            (size.bytes as f64 / (blocks * 4096) as f64, size.hit_ratio)
        };
        let (all, sample) = (of(ACCESSES_MAX / 2, 16_384), of(ACCESSES_MAX * 2, 65_536));
        assert!((all.0 - sample.0).abs() < 0.07, "sizes: {all:?} {sample:?}");
        assert!((all.1 - sample.1).abs() < 0.03, "hits: {all:?} {sample:?}");
    }
}
