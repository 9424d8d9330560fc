//! Memory in which cleaning puts copies together, to write them as one run.
//!
//! A drive fills an erase block with what comes in a row. Where records of guests and of copies
//! take turns, each block holds some of both, which die at different times, and the drive has to
//! copy what is left (`flowstone replay`: 1.3 blocks for one, against 1.0 with runs of 4 MiB on
//! erase blocks of 512 KiB).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What cleaners share unless told.
pub const COPY_MEMORY_DEFAULT: u64 = 64 << 20;
/// One of them takes a quarter, or as much as this: a run of 4 MiB, and what is sorted for it.
const ONE_TAKES: u64 = 20 << 20;
/// A run takes so much of that in so many parts: what is sorted, twice (a victim, and the one after
/// it), each twice as long as a run; and the run itself.
const PARTS: u64 = 5;
/// The shortest run, in memory of the cleaner's own: it goes on if others have all.
const RUN_LEAST: u64 = 256 << 10;

/// Memory that the cleaners of all log images of a process share. Cheap to clone.
#[derive(Clone, Debug)]
pub struct CopyMemory(Arc<Budget>);

#[derive(Debug)]
struct Budget {
    bytes: u64,
    lent: AtomicU64,
}

/// What one cleaner has of it. Given back when dropped.
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
    /// So many bytes in all.
    pub fn new(bytes: u64) -> Self {
        Self(Arc::new(Budget { bytes, lent: AtomicU64::new(0) }))
    }

    /// What a cleaner may have now: nothing, if others have all.
    pub fn lend(&self) -> Lent {
        let Budget { bytes, lent } = &*self.0;
        let wanted = (bytes / 4).max(ONE_TAKES);
        let take = |lent: u64| wanted.min(bytes.saturating_sub(lent));
        let before = lent
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |lent| Some(lent + take(lent)))
            .unwrap_or_else(|lent| lent);
        Lent { from: self.clone(), bytes: take(before) }
    }
}

impl Lent {
    /// How much it is.
    #[cfg(test)]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of copies that are written in a row: half of a segment, as far as there is memory.
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
