//! The memory that blocks are kept in: frames of 4 KiB, each free, being filled by one queue, or
//! kept and read by any number of them.
//!
//! What a frame is used for is decided under the lock of the [`Table`](crate::table::Table), which
//! alone takes frames and gives them back. Copies are made without that lock: memory of a guest may
//! take its time to be there (after a migration, say), and no other guest waits for it. So who
//! reads pins the frame first, under the lock, and a frame is given to another use only when nobody
//! pins it.

use std::io;
use std::slice;

use flowstone_block::sync::atomic::{AtomicU32, Ordering};
use flowstone_block::{IoVec, Pages, mutant};

use crate::BLOCK_BYTES;
use crate::prefetch::{LINE_BYTES, prefetch};

/// Of a frame that will be read, so much is asked for; the CPU sees by itself how it goes on.
const PREFETCHED_BYTES: usize = 512;

/// A frame, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame(u32);

impl Frame {
    /// No frame: what stands in a list of frames where there is none.
    pub const NONE: Self = Self(u32::MAX);

    /// Whether it is one.
    pub fn is_some(self) -> bool {
        self != Self::NONE
    }
}

/// All frames, and the copies out of them.
pub struct Memory {
    pages: Pages,
    pins: Vec<AtomicU32>,
}

impl Memory {
    /// So many frames. They take no room before they are used.
    pub fn new(frames: usize) -> io::Result<Self> {
        let pages = Pages::new(frames * BLOCK_BYTES)?;
        // Or one block would take, and keep, the memory of 512.
        pages.refuse_huge_pages();
        Ok(Self { pages, pins: (0..frames).map(|_| AtomicU32::new(0)).collect() })
    }

    fn start(&self, frame: Frame) -> *mut u8 {
        self.pages.at(frame.0 as usize * BLOCK_BYTES, BLOCK_BYTES)
    }

    /// A frame will be pinned and read: brings what that takes first near.
    pub fn prefetch(&self, frame: Frame) {
        prefetch(&raw const self.pins[frame.0 as usize]);
        let start = self.start(frame);
        for offset in (0..PREFETCHED_BYTES).step_by(LINE_BYTES) {
            prefetch(start.wrapping_add(offset));
        }
    }

    /// Keeps a frame from being given to another use. Under the lock.
    pub fn pin(&self, frame: Frame) {
        self.pins[frame.0 as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Lets go of a frame that the caller has pinned, with or without the lock.
    pub fn unpin(&self, frame: Frame) {
        // What was read from it was read before it is used again.
        let order = match mutant("cache.frames.unpins-without-order") {
            true => Ordering::Relaxed,
            false => Ordering::Release,
        };
        self.pins[frame.0 as usize].fetch_sub(1, order);
    }

    fn is_pinned(&self, frame: Frame) -> bool {
        self.pins[frame.0 as usize].load(Ordering::Acquire) != 0
    }

    /// Gives the memory of frames, which the caller has taken, back to the host.
    pub fn give_back(&self, frames: &mut [Frame]) {
        frames.sort_unstable_by_key(|frame| frame.0);
        for run in frames.chunk_by(|one, next| one.0 + 1 == next.0) {
            let start = run[0].0 as usize * BLOCK_BYTES;
            self.pages.zero(start..start + run.len() * BLOCK_BYTES);
        }
    }

    /// What a kept frame holds.
    ///
    /// # Safety
    /// The caller has pinned it, or is the only one that uses it; so nobody changes it meanwhile.
    pub unsafe fn bytes(&self, frame: Frame) -> &[u8] {
        // SAFETY: a frame lies within the pages, and by the caller's promise is not changed.
        unsafe { slice::from_raw_parts(self.start(frame), BLOCK_BYTES) }
    }

    /// A frame that is being filled.
    ///
    /// # Safety
    /// The caller has [taken](FreeFrames::take) it, and nothing else refers to it.
    #[expect(clippy::mut_from_ref, reason = "each frame is memory of its own, with one owner here")]
    pub unsafe fn bytes_mut(&self, frame: Frame) -> &mut [u8] {
        // SAFETY: as above; it is the caller's alone.
        unsafe { slice::from_raw_parts_mut(self.start(frame), BLOCK_BYTES) }
    }

    /// A frame as a piece of a request's memory.
    ///
    /// # Safety
    /// The caller has taken it, and keeps it until that request has come back.
    pub unsafe fn piece(&self, frame: Frame) -> IoVec {
        // SAFETY: the frame is valid while `self` is, which outlives all requests of its channels.
        unsafe { IoVec::new(self.start(frame), BLOCK_BYTES) }
    }
}

/// Frames that hold nothing.
pub struct FreeFrames {
    free: Vec<Frame>,
    /// The host has their memory back.
    returned: Vec<Frame>,
    /// They hold nothing any more, and somebody still reads them.
    pinned: Vec<Frame>,
    /// Frames that have never been used are from here on.
    unused: u32,
    count: u32,
    /// Frames that may have memory.
    limit: u32,
}

/// Frames that are looked at for one that nobody reads any more, before one without memory is
/// taken.
const LOOKED_AT: usize = 4;

impl FreeFrames {
    /// All of so many frames.
    pub fn new(count: usize) -> Self {
        let (free, returned, pinned) = (Vec::new(), Vec::new(), Vec::new());
        let count = count as u32;
        Self { free, returned, pinned, unused: 0, count, limit: count }
    }

    /// So many frames may have memory from now on.
    pub fn limit(&mut self, frames: usize) {
        self.limit = frames as u32;
    }

    /// How many hold something, or are on their way to.
    fn in_use(&self) -> usize {
        self.resident() - self.free.len() - self.pinned.len()
    }

    /// How many have it.
    pub fn resident(&self) -> usize {
        self.unused as usize - self.returned.len()
    }

    /// A frame for the caller alone, if there is one.
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

    /// Takes a frame back that is not to be found any more. Somebody may still be reading it.
    pub fn give_back(&mut self, memory: &Memory, frame: Frame) {
        let is_read = memory.is_pinned(frame) && !mutant("cache.frames.used-again-while-read");
        let to = if is_read { &mut self.pinned } else { &mut self.free };
        to.push(frame);
    }

    /// Takes up to `count` frames that hold nothing, to give their memory back to the host.
    pub fn take_idle(&mut self, memory: &Memory, count: usize) -> Vec<Frame> {
        let read_by_nobody = self.pinned.extract_if(.., |frame| !memory.is_pinned(*frame));
        self.free.extend(read_by_nobody);
        let kept = self.free.len() - count.min(self.free.len());
        self.free.split_off(kept)
    }

    /// Frames whose memory has been given back.
    pub fn returned(&mut self, frames: &[Frame]) {
        self.returned.extend(frames);
    }

    /// How many there are.
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
