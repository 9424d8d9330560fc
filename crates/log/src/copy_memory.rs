//! Memory in which the cleaner gathers copies, to write them as one run.
//!
//! A drive fills an erase block with consecutively written data. Where records of guests and of
//! copies alternate, each erase block holds some of both, which die at different times, and the
//! drive has to copy the rest (`flowstone replay`: 1.3 blocks for one, against 1.0 with runs of 4
//! MiB on erase blocks of 512 KiB).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flowstone_block::mutated;

/// Default size of the memory that all cleaners share.
pub const COPY_MEMORY_DEFAULT: u64 = 64 << 20;
/// One cleaner takes a quarter, or at least this: a run of 4 MiB, and the blocks sorted for it.
const ONE_TAKES: u64 = 20 << 20;
/// Parts of that memory, each as long as a run: the blocks being sorted, of a victim and of the
/// next one, each twice as long as a run; and the run itself.
const PARTS: u64 = 5;
/// Minimum length of a run, in memory of the cleaner's own: it goes on when others have taken all.
const RUN_LEAST: u64 = 256 << 10;

/// Memory that the cleaners of all log images of a process share. Cheap to clone.
#[derive(Clone, Debug)]
pub struct CopyMemory(Arc<Budget>);

#[derive(Debug)]
struct Budget {
    bytes: u64,
    lent: AtomicU64,
}

/// The share of one cleaner. Returned when dropped.
#[derive(Debug)]
pub struct Lent {
    from: CopyMemory,
    bytes: u64,
}

impl Default for CopyMemory {
    fn default() -> Self {
        Self::new(COPY_MEMORY_DEFAULT)
    }
}

impl CopyMemory {
    /// Memory of `bytes` bytes in all.
    pub fn new(bytes: u64) -> Self {
        Self(Arc::new(Budget { bytes, lent: AtomicU64::new(0) }))
    }

    /// Lends a cleaner its share: 0 bytes, if others have taken all.
    pub fn lend(&self) -> Lent {
        let Budget { bytes, lent } = &*self.0;
        let wanted = (bytes / 4).max(ONE_TAKES);
        let take = |lent: u64| {
            let left = bytes.saturating_sub(lent);
            let left = mutated("log.copies.takes-memory-that-others-have", left, *bytes);
            wanted.min(left)
        };
        let before = lent
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |lent| Some(lent + take(lent)))
            .unwrap_or_else(|lent| lent);
        Lent { from: self.clone(), bytes: take(before) }
    }
}

impl Lent {
    /// Returns its size.
    #[cfg(test)]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the bytes of copies written in a row: half of a segment, as far as there is memory.
    pub fn run_bytes(&self, segment_bytes: u64) -> u64 {
        (self.bytes / PARTS).min(segment_bytes / 2).max(RUN_LEAST)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.from.0.lent.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn cleaners_share_it_and_each_goes_on_without() {
        let memory = CopyMemory::new(50 * MIB);
        let lent = [memory.lend(), memory.lend(), memory.lend(), memory.lend()];
        let runs = lent.each_ref().map(|it| it.run_bytes(128 * MIB) >> 18);
        assert_eq!(runs, [16, 16, 8, 1]);
        drop(lent);
        assert_eq!(memory.lend().run_bytes(128 * MIB), 4 * MIB, "given back");
    }

    #[test]
    fn with_more_memory_runs_are_longer_up_to_half_a_segment() {
        let lent = CopyMemory::new(400 * MIB).lend();
        assert_eq!([128, 8, 1].map(|it| lent.run_bytes(it * MIB) >> 19), [40, 8, 1]);
    }
}
