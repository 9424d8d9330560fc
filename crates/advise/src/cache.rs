//! How large a cache pays: the default policy over the blocks of a trace, at sixteen sizes.

use flowstone_cache::{BLOCK_BYTES, BlockId, FREQ_THRESHOLD, Outcome, PolicyKind};
use flowstone_trace::{Kind, Trace};

/// Sizes that are tried, in equal steps up to all blocks that are touched.
const STEPS: usize = 16;
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

/// The size from which on no step pays; nothing if no block was read.
pub fn size(trace: &Trace) -> Option<CacheSize> {
    let accesses = accesses(trace);
    let mut blocks: Vec<_> = accesses.iter().map(|(block, _)| *block).collect();
    blocks.sort_unstable();
    blocks.dedup();
    let reads = accesses.iter().filter(|(_, is_read)| *is_read).count();
    if reads == 0 {
        return None;
    }
    let step = blocks.len().div_ceil(STEPS);
    let step_bytes = (step * BLOCK_BYTES) as u64;
    let mut best = CacheSize { step_bytes, ..CacheSize::default() };
    for steps in 1..=STEPS {
        let hits = hits(&accesses, step * steps);
        let gain = hits as f64 / reads as f64 - best.hit_ratio;
        best.next_gain = gain;
        if gain < GAIN_MIN {
            break;
        }
        let (bytes, hit_ratio) = (step_bytes * steps as u64, best.hit_ratio + gain);
        best = CacheSize { bytes, hit_ratio, next_gain: 0.0, step_bytes };
    }
    Some(best)
}

/// Blocks in order, and whether they were read. Journals pass the cache by.
fn accesses(trace: &Trace) -> Vec<(BlockId, bool)> {
    let passes_by = |class| class == Some(flowstone_trace::Class::Journal);
    let seen = trace.events.iter().filter(|event| !passes_by(event.class));
    let seen = seen.filter(|event| matches!(event.kind, Kind::Read | Kind::Write | Kind::Access));
    seen.flat_map(|event| {
        let is_read = event.kind != Kind::Write;
        event.blocks().map(move |block| (BlockId::of_disk(0, block), is_read))
    })
    .collect()
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
