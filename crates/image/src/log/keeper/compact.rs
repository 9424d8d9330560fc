//! `compact`: live blocks are rewritten in the order of their LBAs, so that what a guest reads in
//! sequence lies in sequence, and dead space goes back to the host.

use flowstone_block::Outcome;

use super::{CheckpointKind, Keeper};

impl Keeper {
    /// Puts the whole image in order.
    pub fn compact(&mut self) -> Outcome {
        self.checkpoint(CheckpointKind::Running)
    }
}
