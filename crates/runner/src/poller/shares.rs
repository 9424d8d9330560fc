//! What the disks of a thread have had of a pass. Turns go from queue to queue, and a disk may have
//! as many as it likes: so they take new requests only until their disk has had its time.
//! Completions are shown in any case.

use std::time::Duration;

use flowstone_block::mutant;

use crate::batch::TURN;

/// What a queue that shares its thread may take from its ring in one turn. Where a submission is a
/// copy (files in memory), that is about a tenth of a millisecond.
pub(super) const TURN_BYTES: u64 = 1 << 20;

/// See the module.
#[derive(Default)]
pub(super) struct Shares {
    disks: Vec<Share>,
    pass: u32,
}

struct Share {
    disk: u32,
    /// In which pass it had something last, and how much.
    pass: u32,
    used: Duration,
}

impl Shares {
    /// Of these disks; which place each of them has. A disk that is named again has the same one.
    pub fn reset(&mut self, disks: impl IntoIterator<Item = u32>) -> Vec<usize> {
        self.disks.clear();
        disks.into_iter().map(|disk| self.place(disk)).collect()
    }

    fn place(&mut self, disk: u32) -> usize {
        self.disks.iter().position(|share| share.disk == disk).unwrap_or_else(|| {
            self.disks.push(Share { disk, pass: self.pass, used: Duration::ZERO });
            self.disks.len() - 1
        })
    }

    /// The next pass begins.
    pub fn begin(&mut self, pass: u32) {
        self.pass = pass;
    }

    /// How many bytes a queue of a disk may take in its turn.
    pub fn bytes_left(&self, place: usize) -> u64 {
        let share = &self.disks[place];
        let has_left = share.pass != self.pass || share.used < TURN || self.disks.len() == 1;
        if has_left || mutant("runner.shares.go-by-queue") { TURN_BYTES } else { 0 }
    }

    /// A disk has had so much.
    pub fn charge(&mut self, place: usize, time: Duration) {
        let share = &mut self.disks[place];
        if share.pass != self.pass {
            (share.pass, share.used) = (self.pass, Duration::ZERO);
        }
        share.used += time;
    }
}
