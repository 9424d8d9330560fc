//! Shrinking and growing of the cache.

use super::Table;
use crate::frames::{Frame, Memory};

/// Blocks evicted per hold of the lock when the cache shrinks.
const SHRINK_STEP: usize = 512;

/// Limits of what may be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Blocks kept by the policy.
    pub blocks: usize,
    /// Blocks read ahead.
    pub ahead: usize,
    /// Frames with memory, those being filled included.
    pub frames: usize,
}

impl Table {
    /// Applies smaller limits, and evicts some blocks for that. Returns frames whose memory is to
    /// be returned to the host, and whether there is more to do.
    pub fn shrink(&mut self, memory: &Memory, target: Target) -> (Vec<Frame>, bool) {
        self.set_target(target);
        self.policy.resize(target.blocks, SHRINK_STEP, &mut self.evicted);
        self.drop_evicted(memory);
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

    /// Records frames of [`shrink`](Self::shrink) whose memory has been returned.
    pub fn returned(&mut self, frames: &[Frame]) {
        self.free.returned(frames);
    }

    /// Applies larger limits.
    pub fn grow(&mut self, target: Target) {
        self.set_target(target);
        self.policy.resize(target.blocks, 0, &mut self.evicted);
    }

    /// Returns the number of frames with host memory.
    pub fn resident(&self) -> usize {
        self.free.resident()
    }
}
