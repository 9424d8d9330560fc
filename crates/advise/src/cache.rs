//! How large a cache pays: the default policy over the blocks of a trace, at sixteen sizes.

use flowstone_cache::{BLOCK_BYTES, BlockId, FREQ_THRESHOLD, Outcome, PolicyKind};
use flowstone_trace::{Class, Kind, Trace};

/// Sizes that are tried, in equal steps up to all blocks that are touched.
const STEPS: usize = 16;
/// Of more accesses a sample of the blocks is looked at, in a cache smaller by the same part
/// (SHARDS, Waldspurger et al., FAST'15).
const ACCESSES_MAX: usize = 1 << 20;
/// A step that brings fewer hits than this of all accesses does not pay: the resource monitor grows
/// a cache by the same rule.
const GAIN_MIN: f64 = 0.004;

/// A size, and what it answers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CacheSize {
    pub bytes: u64,
    /// Part of the blocks read that are hits.
    pub hit_ratio: f64,
    /// What the next step would add to that, of how many bytes.
    pub next_gain: f64,
    pub step_bytes: u64,
}

/// The size whose steps all pay together, and from which on none does; nothing if no block was
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
    // A step that brings nothing may lead to one that does: a loop fits at once or not at all.
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

/// Blocks in order, and whether they were read. Journals pass the cache by.
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

/// Neighbours are chosen apart from each other (the multiplier is 2^64 / the golden ratio).
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
