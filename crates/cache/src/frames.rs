//! The memory of the cache: frames of 4 KiB, each free, being filled by one queue, or held and read
//! by any number of queues.
//!
//! The use of a frame is decided under the lock of the [`Table`](crate::table::Table), which alone
//! takes frames and gives them back. Copies are made without that lock: a guest's memory may take
//! time to be present (after a migration, say), and no other guest may wait for it. So a reader
//! pins the frame first, under the lock, and a frame is reused only when it is not pinned.

use std::io;
use std::slice;

use flowstone_block::sync::atomic::{AtomicU32, Ordering};
use flowstone_block::{IoVec, Pages, mutated};

use crate::BLOCK_BYTES;
use crate::prefetch::{LINE_BYTES, prefetch};

/// Bytes of a frame that are prefetched; the CPU's own prefetcher continues.
const PREFETCHED_BYTES: usize = 512;

/// The number of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Frame(u32);

impl Frame {
    /// No frame: the empty entry of a list of frames.
    pub const NONE: Self = Self(u32::MAX);

    /// Returns whether this is a frame.
    pub fn is_some(self) -> bool {
        self != Self::NONE
    }

    /// Returns whether the memory of `next` follows that of this frame.
    pub const fn is_followed_by(self, next: Self) -> bool {
        self.0 + 1 == next.0
    }
}

/// All frames and their pin counts.
pub struct Memory {
    pages: Pages,
    pins: Vec<AtomicU32>,
}

impl Memory {
    /// Reserves `frames` frames. They use no memory before their first use.
    pub fn new(frames: usize) -> io::Result<Self> {
        let pages = Pages::new(frames * BLOCK_BYTES)?;
        // Otherwise one block would occupy the memory of 512.
        pages.refuse_huge_pages();
        Ok(Self { pages, pins: (0..frames).map(|_| AtomicU32::new(0)).collect() })
    }

    fn start(&self, frame: Frame) -> *mut u8 {
        self.pages.at(frame.0 as usize * BLOCK_BYTES, BLOCK_BYTES)
    }

    /// Prefetches the pin count and the beginning of a frame.
    pub fn prefetch(&self, frame: Frame) {
        prefetch(&raw const self.pins[frame.0 as usize]);
        let start = self.start(frame);
        for offset in (0..PREFETCHED_BYTES).step_by(LINE_BYTES) {
            prefetch(start.wrapping_add(offset));
        }
    }

    /// Pins a frame, so that it is not reused. Under the lock.
    pub fn pin(&self, frame: Frame) {
        self.pins[frame.0 as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Unpins a frame, with or without the lock.
    pub fn unpin(&self, frame: Frame) {
        // Release: reads from the frame happen before its reuse.
        let order = Ordering::Release;
        let order = mutated("cache.frames.unpins-without-order", order, Ordering::Relaxed);
        self.pins[frame.0 as usize].fetch_sub(1, order);
    }

    fn is_pinned(&self, frame: Frame) -> bool {
        self.pins[frame.0 as usize].load(Ordering::Acquire) != 0
    }

    /// Returns the memory of frames, which the caller has taken, to the host.
    pub fn give_back(&self, frames: &mut [Frame]) {
        frames.sort_unstable_by_key(|frame| frame.0);
        for run in frames.chunk_by(|one, next| one.is_followed_by(*next)) {
            let start = run[0].0 as usize * BLOCK_BYTES;
            self.pages.zero(start..start + run.len() * BLOCK_BYTES);
        }
    }

    /// Returns the content of a held frame.
    ///
    /// # Safety
    /// The caller has pinned it, or is its only user; so it is not changed meanwhile.
    pub unsafe fn bytes(&self, frame: Frame) -> &[u8] {
        // SAFETY: a frame lies within the pages, and by the caller's promise is not changed.
        unsafe { slice::from_raw_parts(self.start(frame), BLOCK_BYTES) }
    }

    /// Returns a frame that is being filled, for writing.
    ///
    /// # Safety
    /// The caller has [taken](FreeFrames::take) it, and nothing else refers to it.
    #[expect(clippy::mut_from_ref, reason = "each frame is memory of its own, with one owner here")]
    pub unsafe fn bytes_mut(&self, frame: Frame) -> &mut [u8] {
        // SAFETY: as above; it is the caller's alone.
        unsafe { slice::from_raw_parts_mut(self.start(frame), BLOCK_BYTES) }
    }

    /// Returns `count` frames that follow each other as a piece of a request's memory.
    ///
    /// # Safety
    /// The caller has taken them, and keeps them until that request has completed.
    pub unsafe fn piece(&self, first: Frame, count: usize) -> IoVec {
        let bytes = count * BLOCK_BYTES;
        let start = self.pages.at(first.0 as usize * BLOCK_BYTES, bytes);
        // SAFETY: frames are valid while `self` is, which outlives all requests of its channels.
        unsafe { IoVec::new(start, bytes) }
    }
}

/// Frames that hold no block.
pub struct FreeFrames {
    free: Vec<Frame>,
    /// Frames whose memory the host has back.
    returned: Vec<Frame>,
    /// Frames that hold no block any more but are still pinned.
    pinned: Vec<Frame>,
    /// First frame that has never been used.
    unused: u32,
    count: u32,
    /// Frames that may have memory.
    limit: u32,
}

/// Pinned frames that are checked before a frame without memory is taken.
const LOOKED_AT: usize = 4;

impl FreeFrames {
    /// Makes `count` unused frames.
    pub fn new(count: usize) -> Self {
        let (free, returned, pinned) = (Vec::new(), Vec::new(), Vec::new());
        let count = count as u32;
        Self { free, returned, pinned, unused: 0, count, limit: count }
    }

    /// Sets how many frames may have memory.
    pub fn limit(&mut self, frames: usize) {
        self.limit = frames as u32;
    }

    /// Returns how many frames hold a block or are being filled.
    fn in_use(&self) -> usize {
        self.resident() - self.free.len() - self.pinned.len()
    }

    /// Returns how many frames have memory.
    pub fn resident(&self) -> usize {
        self.unused as usize - self.returned.len()
    }

    /// Takes a frame for the caller alone, if there is one.
    pub fn take(&mut self, memory: &Memory) -> Option<Frame> {
        if self.in_use() >= self.limit as usize {
            return None;
        }
        if let Some(frame) = self.free.pop() {
            return Some(frame);
        }
        let oldest = self.pinned.iter().take(LOOKED_AT);
        if let Some(found) = oldest.copied().position(|frame| !memory.is_pinned(frame)) {
            return Some(self.pinned.swap_remove(found));
        }
        if self.resident() < self.limit as usize {
            if let Some(frame) = self.returned.pop() {
                return Some(frame);
            }
            if self.unused < self.count {
                self.unused += 1;
                return Some(Frame(self.unused - 1));
            }
        }
        let found = self.pinned.iter().position(|frame| !memory.is_pinned(*frame))?;
        Some(self.pinned.swap_remove(found))
    }

    /// Returns a frame that cannot be looked up any more. It may still be pinned.
    pub fn give_back(&mut self, memory: &Memory, frame: Frame) {
        let is_read = memory.is_pinned(frame);
        let is_read = mutated("cache.frames.used-again-while-read", is_read, false);
        let to = if is_read { &mut self.pinned } else { &mut self.free };
        to.push(frame);
    }

    /// Takes up to `count` idle frames, whose memory is to be returned to the host.
    pub fn take_idle(&mut self, memory: &Memory, count: usize) -> Vec<Frame> {
        let read_by_nobody = self.pinned.extract_if(.., |frame| !memory.is_pinned(*frame));
        self.free.extend(read_by_nobody);
        let kept = self.free.len() - count.min(self.free.len());
        self.free.split_off(kept)
    }

    /// Records frames whose memory has been returned.
    pub fn returned(&mut self, frames: &[Frame]) {
        self.returned.extend(frames);
    }

    /// Returns the number of frames that hold no block.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        let used_before = self.free.len() + self.returned.len() + self.pinned.len();
        (self.count - self.unused) as usize + used_before
    }
}

#[cfg(feature = "model")]
#[cfg(test)]
mod models;
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_that_is_read_is_given_to_no_other_use() {
        let memory = Memory::new(2).unwrap();
        let mut free = FreeFrames::new(2);
        let [first, second] = [(); 2].map(|()| free.take(&memory).unwrap());
        assert_eq!(free.take(&memory), None);
        memory.pin(first);
        free.give_back(&memory, first);
        assert_eq!(free.take(&memory), None);
        free.give_back(&memory, second);
        assert_eq!(free.take(&memory), Some(second));
        memory.unpin(first);
        assert_eq!(free.take(&memory), Some(first));
    }
}
