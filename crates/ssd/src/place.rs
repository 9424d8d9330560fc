//! The place of a file on a drive.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::contents::BLOCK_BYTES;

/// The place of a file on a drive.
pub struct Place {
    /// First block on the drive.
    pub first: u32,
    blocks: u64,
    /// Size in bytes.
    size: AtomicU64,
}

impl Place {
    pub fn new(first: u32, blocks: u64) -> Self {
        Self { first, blocks, size: AtomicU64::new(0) }
    }

    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    /// Returns the offset on the drive, in bytes.
    pub fn offset(&self) -> u64 {
        u64::from(self.first) * BLOCK_BYTES as u64
    }

    /// Sets the size. Returns the size before.
    pub fn set_size(&self, bytes: u64) -> u64 {
        self.size.swap(bytes, Ordering::Relaxed)
    }

    pub fn grow(&self, end: u64) {
        self.size.fetch_max(end, Ordering::Relaxed);
    }

    /// Returns the drive's blocks of a range of the file.
    pub fn blocks(&self, bytes: Range<u64>) -> Range<u32> {
        let block = BLOCK_BYTES as u64;
        let at = |block: u64| self.first + block as u32;
        at(bytes.start / block)..at(bytes.end.div_ceil(block))
    }

    pub fn bytes_max(&self) -> u64 {
        self.blocks * BLOCK_BYTES as u64
    }
}
