//! The in-flight region: what survives a daemon that dies in the middle of requests.
//!
//! Memory that the monitor keeps for us across connections (vhost-user protocol, "Inflight I/O
//! tracking"). For each ring, at a multiple of 64 bytes:
//!
//! ```text
//! 0   features u64         0 for a split ring
//! 8   version u16          1
//! 10  desc_num u16         ring size
//! 12  last_batch_head u16  newest completion of the batch being published
//! 14  used_idx u16         used index once the batch's marks are cleared
//! 16  desc[desc_num] { inflight u8, padding [5], next u16, counter u64 }
//! ```
//! Behind the last ring, 64 bytes of ours hold what the monitor does not tell a restarted daemon:
//! whether the guest has switched the disk to write-through.
//!
//! A request is marked before it starts. A batch is published in three steps: link each
//! completion into the list at `last_batch_head`; advance the ring's used index; clear the marks
//! and set `used_idx`. If the ring's index and `used_idx` differ at start-up, we died between
//! the last two, and the list says whose marks to clear. Whatever is marked then is carried out
//! again, oldest first.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering, compiler_fence};

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, ftruncate, memfd_create,
};
use vm_memory::{FileOffset, MmapRegion};

use super::memory::refuse_short_file;

const HEADER_BYTES: usize = 16;
const DEVICE_BYTES: usize = 64;
const ENTRY_BYTES: usize = 16;
const VERSION: u16 = 1;

const AT_VERSION: usize = 8;
const AT_DESC_NUM: usize = 10;
const AT_LAST_BATCH_HEAD: usize = 12;
const AT_USED_IDX: usize = 14;
const AT_INFLIGHT: usize = 0;
const AT_NEXT: usize = 6;
const AT_COUNTER: usize = 8;

/// The whole region, for all rings of a device.
pub struct InflightRegion {
    mapping: MmapRegion,
    queues: u16,
    queue_size: u16,
}

/// One ring's part of it.
pub struct InflightLog {
    region: Arc<InflightRegion>,
    start: usize,
    queue_size: u16,
    counter: u64,
    batch: Vec<u16>,
}

fn queue_bytes(queue_size: u16) -> usize {
    (HEADER_BYTES + ENTRY_BYTES * usize::from(queue_size)).next_multiple_of(64)
}

impl InflightRegion {
    /// Bytes needed for so many rings.
    pub fn bytes_for(queues: u16, queue_size: u16) -> u64 {
        queue_bytes(queue_size) as u64 * u64::from(queues) + DEVICE_BYTES as u64
    }

    /// New, zeroed memory for a region, to be kept by the monitor.
    pub fn create(bytes: u64) -> io::Result<File> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memory = memfd_create("flowstone-inflight", flags)?;
        ftruncate(&memory, bytes)?;
        fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(File::from(memory))
    }

    /// Maps a region that the monitor has kept.
    pub fn map(
        file: File,
        offset: u64,
        bytes: u64,
        queues: u16,
        queue_size: u16,
    ) -> io::Result<Arc<Self>> {
        if queue_size == 0 || bytes < Self::bytes_for(queues, queue_size) {
            return Err(io::Error::other("the in-flight region is smaller than its rings"));
        }
        refuse_short_file(&file, offset, bytes)?;
        if !fcntl_get_seals(&file)?.contains(SealFlags::SHRINK) {
            return Err(io::Error::other("the in-flight region is not one of ours"));
        }
        let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
        let mapping = MmapRegion::from_file(FileOffset::new(file, offset), bytes)
            .map_err(io::Error::other)?;
        Ok(Arc::new(Self { mapping, queues, queue_size }))
    }

    fn write_through_mark(&self) -> &AtomicU8 {
        let at = queue_bytes(self.queue_size) * usize::from(self.queues);
        // SAFETY: `map` checked that the region has the bytes behind its rings.
        unsafe { AtomicU8::from_ptr(self.mapping.as_ptr().add(at)) }
    }

    /// Whether an earlier life was told to write through.
    pub fn write_through(&self) -> bool {
        self.write_through_mark().load(Ordering::Relaxed) == 1
    }

    /// Leaves word for a later life.
    pub fn set_write_through(&self, on: bool) {
        self.write_through_mark().store(u8::from(on), Ordering::Relaxed);
    }

    /// The part of ring `index`, or `None` if the region has no such ring or is meant for
    /// smaller ones.
    pub fn log(self: &Arc<Self>, index: usize, queue_size: u16) -> Option<InflightLog> {
        if index >= usize::from(self.queues) || queue_size > self.queue_size {
            return None;
        }
        let start = index * queue_bytes(self.queue_size);
        Some(InflightLog {
            region: Arc::clone(self),
            start,
            queue_size,
            counter: 0,
            batch: Vec::with_capacity(usize::from(queue_size)),
        })
    }
}

impl InflightLog {
    fn at<T>(&self, offset: usize) -> *mut T {
        let offset = self.start + offset;
        assert!(offset + size_of::<T>() <= self.region.mapping.size());
        // SAFETY: in bounds, as just checked; every field is aligned to its size.
        unsafe { self.region.mapping.as_ptr().add(offset).cast() }
    }

    fn read<T: Copy>(&self, offset: usize) -> T {
        // SAFETY: `at` returns a valid address; only we write it, and any bytes are a number.
        unsafe { self.at::<T>(offset).read_volatile() }
    }

    fn write<T>(&self, offset: usize, value: T) {
        // SAFETY: as for read.
        unsafe { self.at::<T>(offset).write_volatile(value) };
        // What we die with must be a prefix of what we wrote, in this order. Another process
        // reads it after we are gone, so keeping the compiler from reordering is enough.
        compiler_fence(Ordering::SeqCst);
    }

    fn entry(head: u16) -> usize {
        HEADER_BYTES + ENTRY_BYTES * usize::from(head)
    }

    /// Marks a request before it starts.
    pub fn begin(&mut self, head: u16) {
        let entry = Self::entry(head);
        self.write(entry + AT_COUNTER, self.counter);
        self.counter = self.counter.wrapping_add(1);
        self.write(entry + AT_INFLIGHT, 1u8);
    }

    /// Forgets a request that turned out to be none.
    pub fn abandon(&mut self, head: u16) {
        self.write(Self::entry(head) + AT_INFLIGHT, 0u8);
    }

    /// Links a completion into the batch that will be published next.
    pub fn complete(&mut self, head: u16) {
        let newest: u16 = self.read(AT_LAST_BATCH_HEAD);
        self.write(Self::entry(head) + AT_NEXT, newest);
        self.write(AT_LAST_BATCH_HEAD, head);
        self.batch.push(head);
    }

    /// Clears the marks of a batch; the ring's used index is `used_index` already.
    pub fn published(&mut self, used_index: u16) {
        while let Some(head) = self.batch.pop() {
            self.write(Self::entry(head) + AT_INFLIGHT, 0u8);
        }
        self.write(AT_USED_IDX, used_index);
    }

    /// What an earlier life left undone, oldest first. The ring's used index is `used_index`.
    pub fn recover(&mut self, used_index: u16) -> Vec<u16> {
        if self.read::<u16>(AT_VERSION) == 0 {
            self.write(AT_DESC_NUM, self.queue_size);
            self.write(AT_USED_IDX, used_index);
            self.write(AT_VERSION, VERSION);
        }
        self.finish_interrupted_publish(used_index);
        let mut undone: Vec<(u64, u16)> = (0..self.queue_size)
            .filter(|head| self.read::<u8>(Self::entry(*head) + AT_INFLIGHT) == 1)
            .map(|head| (self.read(Self::entry(head) + AT_COUNTER), head))
            .collect();
        undone.sort_unstable();
        self.counter = undone.last().map_or(0, |(counter, _)| counter.wrapping_add(1));
        undone.into_iter().map(|(_, head)| head).collect()
    }

    fn finish_interrupted_publish(&mut self, used_index: u16) {
        let batch = used_index.wrapping_sub(self.read(AT_USED_IDX));
        let mut head: u16 = self.read(AT_LAST_BATCH_HEAD);
        for _ in 0..batch.min(self.queue_size) {
            if head >= self.queue_size {
                break;
            }
            self.write(Self::entry(head) + AT_INFLIGHT, 0u8);
            head = self.read(Self::entry(head) + AT_NEXT);
        }
        self.write(AT_USED_IDX, used_index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region() -> Arc<InflightRegion> {
        let bytes = InflightRegion::bytes_for(2, 8);
        let file = InflightRegion::create(bytes).unwrap();
        InflightRegion::map(file, 0, bytes, 2, 8).unwrap()
    }

    #[test]
    fn what_was_begun_and_not_published_is_undone_in_order() {
        let region = region();
        let mut log = region.log(1, 8).unwrap();
        assert!(log.recover(0).is_empty());
        for head in [5, 2, 7, 1] {
            log.begin(head);
        }
        log.complete(7);
        log.published(1);
        let mut next_life = region.log(1, 8).unwrap();
        assert_eq!(next_life.recover(1), [5, 2, 1]);
        assert!(region.log(0, 8).unwrap().recover(0).is_empty());
    }

    #[test]
    fn dying_between_used_index_and_marks_repeats_nothing() {
        let region = region();
        let mut log = region.log(0, 8).unwrap();
        log.recover(0);
        for head in [0, 1, 2, 3] {
            log.begin(head);
        }
        log.complete(3);
        log.complete(1);
        // The ring's index went from 0 to 2, and then we died.
        assert_eq!(region.log(0, 8).unwrap().recover(2), [0, 2]);
    }

    #[test]
    fn dying_before_the_used_index_moves_repeats_the_batch() {
        let region = region();
        let mut log = region.log(0, 8).unwrap();
        log.recover(0);
        log.begin(4);
        log.begin(6);
        log.complete(6);
        assert_eq!(region.log(0, 8).unwrap().recover(0), [4, 6]);
    }

    #[test]
    fn a_region_for_smaller_or_fewer_rings_is_not_used() {
        let region = region();
        assert!(region.log(2, 8).is_none());
        assert!(region.log(0, 16).is_none());
        assert!(region.log(usize::MAX, 8).is_none());
        let map = |file_bytes, offset, bytes| {
            let file = InflightRegion::create(file_bytes).unwrap();
            InflightRegion::map(file, offset, bytes, 2, 8).is_err()
        };
        assert!(map(64, 0, 64));
        assert!(map(64, 0, 4096));
        assert!(map(4096, u64::MAX, 4096));
    }
}
