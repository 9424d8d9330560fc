//! The cache becomes smaller, and larger again.

use super::Table;
use crate::frames::{Frame, Memory};

/// Blocks that are given up at a time when the cache becomes smaller: others wait for the lock
/// meanwhile.
const SHRINK_STEP: usize = 512;

/// How much may be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Blocks that the policy keeps.
    pub blocks: usize,
    /// Blocks that were read ahead.
    pub ahead: usize,
    /// Frames that have memory, those of blocks on their way included.
    pub frames: usize,
}

impl Table {
    /// Keeps at most so many blocks, and blocks read ahead, from now on, in at most so many frames.
    /// Gives some of them up for that. Returns frames whose memory the host is to have back, and
    /// whether there is more to do.
    pub fn shrink(&mut self, memory: &Memory, target: Target) -> (Vec<Frame>, bool) {
        self.set_target(target);
        let mut evicted = std::mem::take(&mut self.evicted);
        self.policy.resize(target.blocks, SHRINK_STEP, &mut evicted);
        for gone in evicted.drain(..) {
            self.disk(gone.block.disk()).evictions += 1;
            self.drop_data(memory, gone);
        }
        self.evicted = evicted;
        for _ in 0..SHRINK_STEP {
            if self.ahead.blocks.len(0) <= target.ahead {
                break;
            }
            self.drop_oldest_ahead(memory);
        }
        let idle = self.free.take_idle(memory, SHRINK_STEP);
        let is_over = self.policy.len() > target.blocks || self.ahead.blocks.len(0) > target.ahead;
        let more = is_over || idle.len() == SHRINK_STEP;
        (idle, more)
    }

    fn set_target(&mut self, target: Target) {
        self.ahead.blocks_max = target.ahead;
        self.free.limit(target.frames);
    }

    /// Frames of [`shrink`](Self::shrink) whose memory has been given back.
    pub fn returned(&mut self, frames: &[Frame]) {
        self.free.returned(frames);
    }

    /// May keep so much from now on, which is more than before.
    pub fn grow(&mut self, target: Target) {
        self.set_target(target);
        self.policy.resize(target.blocks, 0, &mut self.evicted);
    }

    /// How many frames have memory of the host.
    pub fn resident(&self) -> usize {
        self.free.resident()
    }
}
