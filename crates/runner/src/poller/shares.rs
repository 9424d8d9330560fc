//! The time of each disk in a pass of its thread. Turns go from queue to queue, and a disk may have
//! many queues; queues take new requests only until their disk has used its time. Completions are
//! published in any case.

use std::time::Duration;

use flowstone_block::mutated;

use crate::task::TURN;

/// Bytes that a queue on a shared thread may take from its ring in one turn. Where a submission is
/// a copy (files in memory), that is about a tenth of a millisecond.
pub(super) const TURN_BYTES: u64 = 1 << 20;

/// Time used by each disk in the current pass.
#[derive(Default)]
pub(super) struct Shares {
    disks: Vec<Share>,
    pass: u32,
}

struct Share {
    disk: u32,
    /// The last pass in which the disk used time, and how much.
    pass: u32,
    used: Duration,
}

impl Shares {
    /// Starts over with these disks. Returns the index of each; queues of one disk share one.
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

    /// Begins a pass.
    pub fn begin(&mut self, pass: u32) {
        self.pass = pass;
    }

    /// Returns how many bytes a queue of this disk may take in its turn.
    pub fn bytes_left(&self, place: usize) -> u64 {
        let share = &self.disks[place];
        let has_left = share.pass != self.pass || share.used < TURN || self.disks.len() == 1;
        let has_left = mutated("runner.shares.go-by-queue", has_left, true);
        if has_left { TURN_BYTES } else { 0 }
    }

    /// Charges `time` to a disk.
    pub fn charge(&mut self, place: usize, time: Duration) {
        let share = &mut self.disks[place];
        if share.pass != self.pass {
            (share.pass, share.used) = (self.pass, Duration::ZERO);
        }
        share.used += time;
    }
}
