//! Buffers that blocks are read ahead into before they are copied to their frames.
//!
//! Frames are scattered once a cache is full, and a disk takes a piece of memory for each page
//! (docs/decisions/transfers-from-huge-pages.md). These buffers lie in huge pages, if the cache is
//! not small and the host has some, so a range that is read ahead is few pieces, for the price of a
//! copy.

use std::sync::Mutex;

use flowstone_block::{AlignedBuf, Slab, lock};

use crate::BLOCK_BYTES;
use crate::readahead::WINDOW_MAX;

/// Buffers of this size share a huge page, two of them. Smaller ones would leave it unused.
const LARGE_BYTES: usize = WINDOW_MAX as usize * BLOCK_BYTES;
const BUFFERS_PER_SLAB: usize = 2;
/// Together they take this part of the cache's memory, but one is always there; and their greatest
/// number.
const PART_OF: usize = 64;
const BUFFERS_MAX: usize = 16;

/// The buffers of a cache, for all of its queues.
pub struct Staging {
    buffers: Mutex<Buffers>,
    buffer_bytes: usize,
}

#[derive(Default)]
struct Buffers {
    spare: Vec<AlignedBuf>,
    /// Buffers that are spare or in use, and their greatest number.
    made: usize,
    most: usize,
}

impl Staging {
    /// For a cache of so many frames, of which this many blocks are read ahead with one request.
    /// Memory is taken when it is used first.
    pub fn new(frames: usize, window_max: usize) -> Self {
        let blocks = window_max.min(WINDOW_MAX as usize);
        let staging = Self { buffers: Mutex::default(), buffer_bytes: blocks * BLOCK_BYTES };
        staging.resize(frames);
        staging
    }

    /// Sets the number of frames of the cache. If it has fewer, the host gets the memory of buffers
    /// that are not in use, all of it since two of them share a page, and that of others which are
    /// too many when they are given back.
    pub fn resize(&self, frames: usize) {
        let most = frames * BLOCK_BYTES / PART_OF / self.buffer_bytes;
        let most = most.clamp(1, BUFFERS_MAX);
        let mut buffers = lock(&self.buffers);
        let before = std::mem::replace(&mut buffers.most, most);
        let spare = if most < before { std::mem::take(&mut buffers.spare) } else { Vec::new() };
        buffers.made -= spare.len();
        drop(buffers);
        // Without the lock: the kernel takes its time.
        drop(spare);
    }

    /// Takes a buffer; `None` if all are in use, or the host has no memory.
    pub fn take(&self) -> Option<AlignedBuf> {
        let mut buffers = lock(&self.buffers);
        if buffers.spare.is_empty() && buffers.made < buffers.most {
            let made = self.make(buffers.most - buffers.made);
            buffers.made += made.len();
            buffers.spare.extend(made);
        }
        buffers.spare.pop()
    }

    /// Makes some buffers, at most so many.
    fn make(&self, most: usize) -> Vec<AlignedBuf> {
        if self.buffer_bytes < LARGE_BYTES {
            return AlignedBuf::try_zeroed(self.buffer_bytes).into_iter().collect();
        }
        let count = BUFFERS_PER_SLAB.min(most);
        let slab = Slab::new(count * self.buffer_bytes);
        let cut = |mut slab: Slab| (0..count).map_while(move |_| slab.cut(self.buffer_bytes));
        slab.into_iter().flat_map(cut).collect()
    }

    /// Takes a buffer back.
    pub fn give_back(&self, buffer: AlignedBuf) {
        let mut buffers = lock(&self.buffers);
        if buffers.made <= buffers.most {
            return buffers.spare.push(buffer);
        }
        buffers.made -= 1;
        drop(buffers);
        drop(buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_have_a_part_of_the_cache_and_are_returned_when_it_shrinks() {
        // 1 MiB, 128 MiB, 64 GiB.
        for (frames, window, most) in [(1 << 8, 8, 1), (1 << 15, 256, 2), (1 << 24, 256, 16)] {
            let staging = Staging::new(frames, window);
            let mut spare: Vec<_> = std::iter::from_fn(|| staging.take()).collect();
            assert_eq!(spare.len(), most);
            assert!(spare.iter().all(|buffer| buffer.len() == window * BLOCK_BYTES));
            assert!(most * window <= (frames / PART_OF).max(window));
            let used = spare.split_off(most / 2);
            let left = |staging: &Staging| {
                let buffers = lock(&staging.buffers);
                (buffers.made, buffers.spare.len())
            };
            let in_use = used.len();
            spare.into_iter().for_each(|buffer| staging.give_back(buffer));
            staging.resize(0);
            assert_eq!(left(&staging), (in_use, 0));
            used.into_iter().for_each(|buffer| staging.give_back(buffer));
            assert_eq!(left(&staging), (1, 1));
            assert!(staging.take().is_some() && staging.take().is_none());
            staging.resize(frames);
            assert!(staging.take().is_some() || most == 1);
        }
    }
}
