//! The in-flight region: state of requests that survives a crash of the daemon.
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
//! 16  desc[desc_num] { inflight u8, deaths u8, padding [4], next u16, counter u64 }
//! ```
//! `deaths` is our own field, in padding of the specification; monitors keep the memory as it is
//! and read none of it. It has two counts of daemon lives: the high four bits count those that have
//! started the request, the low four bits those since then that died before they had passed it to
//! the disk.
//!
//! Behind the last ring, 64 bytes of our own hold state that the monitor does not pass to a
//! restarted daemon: the guest's choice of write-through.
//!
//! A request is marked before it starts. A batch is published in three steps: link each completion
//! into the list at `last_batch_head`; advance the ring's used index; clear the marks and set
//! `used_idx`. If the ring's index and `used_idx` differ at start-up, the daemon died between the
//! last two steps, and the list names the marks to clear. Requests still marked then are replayed,
//! oldest first and one at a time. Before a replay both counts are raised; when the disk has the
//! request, the low one is cleared. While a request waits for the other half of its queue on
//! another thread, the low one is as before. So a request that crashes the daemon is told from one
//! that a killed daemon happened to have in flight (see [`Undone`]).

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering, compiler_fence};

use flowstone_block::mutated;
use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, ftruncate, memfd_create,
};

use super::memory::GuardedRegion;

const HEADER_BYTES: usize = 16;
const DEVICE_BYTES: usize = 64;
const ENTRY_BYTES: usize = 16;
const VERSION: u16 = 1;
/// The largest region: 128 rings of 32,768 entries; no disk has more.
const BYTES_MAX: u64 = 128 * (16 * 32_768 + 64) + DEVICE_BYTES as u64;

const AT_VERSION: usize = 8;
const AT_DESC_NUM: usize = 10;
const AT_LAST_BATCH_HEAD: usize = 12;
const AT_USED_IDX: usize = 14;
/// In-flight mark and deaths: one 16-bit word, so that both are written atomically.
const AT_MARK: usize = 0;
const AT_NEXT: usize = 6;
const AT_COUNTER: usize = 8;

/// Returns the word at `AT_MARK` of a request that `started` lives have started, of which the last
/// `in_hand` died before passing it to the disk. Both saturate at 15.
fn marked(started: u8, in_hand: u8) -> u16 {
    u16::from_ne_bytes([1, started.min(15) << 4 | in_hand.min(15)])
}

/// The word at `AT_MARK` of an entry without a request.
const UNMARKED: u16 = 0;

/// A request that a dead daemon left undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Undone {
    /// The head of its chain.
    pub head: u16,
    /// Number of lives that have started it and died before it was done.
    pub started: u8,
    /// Number of them, the last in a row, that had it in hand: parsed or submitted it, and died
    /// before the disk had it. The first of them also had other requests of the batch in hand.
    pub in_hand: u8,
}

/// The whole region, for all rings of a device.
pub struct InflightRegion {
    mapping: GuardedRegion,
    queues: u16,
    queue_size: u16,
}

/// One ring's part of the region, in two halves: an entry belongs to the first from when its head
/// is taken until the request is handed to the second, and to the second until its mark is cleared.
pub struct InflightLog {
    /// The half of the queue half that takes requests.
    pub avail: AvailLog,
    /// The half of the queue half that completes them.
    pub used: UsedLog,
}

/// The half that marks requests.
pub struct AvailLog {
    ring: RingLog,
    counter: u64,
}

/// The half that clears the marks.
pub struct UsedLog {
    ring: RingLog,
    batch: Vec<u16>,
    /// Heads that are started and not yet with the disk.
    in_hand: Vec<u16>,
}

/// The memory of one ring.
#[derive(Clone)]
struct RingLog {
    region: Arc<InflightRegion>,
    start: usize,
    queue_size: u16,
}

fn queue_bytes(queue_size: u16) -> usize {
    (HEADER_BYTES + ENTRY_BYTES * usize::from(queue_size)).next_multiple_of(64)
}

impl InflightRegion {
    /// Returns the size of a region of `queues` rings.
    pub fn bytes_for(queues: u16, queue_size: u16) -> u64 {
        queue_bytes(queue_size) as u64 * u64::from(queues) + DEVICE_BYTES as u64
    }

    /// Creates the zeroed memory of a region, to be kept by the monitor.
    pub fn create(bytes: u64) -> io::Result<File> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memory = memfd_create("flowstone-inflight", flags)?;
        ftruncate(&memory, bytes)?;
        fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(File::from(memory))
    }

    /// Maps a region kept by the monitor.
    pub fn map(
        file: File,
        offset: u64,
        bytes: u64,
        queues: u16,
        queue_size: u16,
    ) -> io::Result<Arc<Self>> {
        let needed = Self::bytes_for(queues, queue_size);
        if queue_size == 0 || bytes < needed {
            return Err(io::Error::other("the in-flight region is smaller than its rings"));
        }
        let is_too_long = needed > BYTES_MAX;
        let is_too_long = mutated("frontend.inflight.maps-any-number-of-rings", is_too_long, false);
        if is_too_long {
            return Err(io::Error::other("the in-flight region has more rings than a disk"));
        }
        if !fcntl_get_seals(&file)?.contains(SealFlags::SHRINK) {
            return Err(io::Error::other("the in-flight region is not one of ours"));
        }
        // Maps no more than needed, however large the monitor's region is.
        let bytes = usize::try_from(needed).map_err(io::Error::other)?;
        let mapping = GuardedRegion::map(file, offset, bytes, None)?;
        Ok(Arc::new(Self { mapping, queues, queue_size }))
    }

    fn write_through_mark(&self) -> &AtomicU8 {
        let at = queue_bytes(self.queue_size) * usize::from(self.queues);
        // SAFETY: `map` checked that the region has the bytes behind its rings.
        unsafe { AtomicU8::from_ptr(self.mapping.as_ptr().add(at)) }
    }

    /// Returns whether an earlier life was set to write-through.
    pub fn write_through(&self) -> bool {
        self.write_through_mark().load(Ordering::Relaxed) == 1
    }

    /// Records the cache mode for a later life.
    pub fn set_write_through(&self, on: bool) {
        self.write_through_mark().store(u8::from(on), Ordering::Relaxed);
    }

    /// Returns the part of ring `index`; `None` if the region has no such ring or its rings are
    /// smaller.
    pub fn log(self: &Arc<Self>, index: usize, queue_size: u16) -> Option<InflightLog> {
        if index >= usize::from(self.queues) || queue_size > self.queue_size {
            return None;
        }
        let start = index * queue_bytes(self.queue_size);
        let ring = RingLog { region: Arc::clone(self), start, queue_size };
        let room = || Vec::with_capacity(usize::from(queue_size));
        let avail = AvailLog { ring: ring.clone(), counter: 0 };
        Some(InflightLog { avail, used: UsedLog { ring, batch: room(), in_hand: room() } })
    }
}

#[cfg(test)]
impl InflightRegion {
    /// Kills a process that writes to the region from page `page` on, from now on.
    pub fn make_deadly(&self, page: usize) {
        let spared = page * 4096;
        let bytes = self.mapping.size() - spared;
        // SAFETY: the mapping is ours; tests do this in processes that are about to end.
        unsafe {
            let start = self.mapping.as_ptr().add(spared).cast();
            rustix::mm::mprotect(start, bytes, rustix::mm::MprotectFlags::READ).unwrap();
        }
    }
}

impl RingLog {
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
        // The stores must be visible in this order if we die at any point. Another process reads
        // them after our death, so a compiler fence is enough.
        compiler_fence(Ordering::SeqCst);
    }

    fn entry(head: u16) -> usize {
        HEADER_BYTES + ENTRY_BYTES * usize::from(head)
    }

    /// Returns the request at `head` and its sequence number, if it is marked.
    fn undone(&self, head: u16) -> Option<(u64, Undone)> {
        let [inflight, deaths] = self.read::<u16>(Self::entry(head) + AT_MARK).to_ne_bytes();
        // An older daemon kept no counts; then it was one life.
        let undone = Undone { head, started: (deaths >> 4).max(1), in_hand: deaths & 15 };
        (inflight == 1).then(|| (self.read(Self::entry(head) + AT_COUNTER), undone))
    }

    /// Changes the low count of a request, unless it has been answered already.
    fn write_in_hand(&self, head: u16, change: impl FnOnce(u8) -> u8) {
        let at = Self::entry(head) + AT_MARK;
        let [inflight, deaths] = self.read::<u16>(at).to_ne_bytes();
        if inflight == 1 {
            self.write(at, marked(deaths >> 4, change(deaths & 15)));
        }
    }

    fn finish_interrupted_publish(&self, used_index: u16) {
        let batch = used_index.wrapping_sub(self.read(AT_USED_IDX));
        let mut head: u16 = self.read(AT_LAST_BATCH_HEAD);
        for _ in 0..batch.min(self.queue_size) {
            if head >= self.queue_size {
                break;
            }
            self.write(Self::entry(head) + AT_MARK, UNMARKED);
            head = self.read(Self::entry(head) + AT_NEXT);
        }
        self.write(AT_USED_IDX, used_index);
    }
}

impl AvailLog {
    /// Returns whether part of the region has been lost.
    pub fn is_broken(&self) -> bool {
        self.ring.region.mapping.is_broken()
    }

    /// Marks a request before it starts.
    pub fn begin(&mut self, head: u16) {
        let entry = RingLog::entry(head);
        self.ring.write(entry + AT_COUNTER, self.counter);
        self.counter = self.counter.wrapping_add(1);
        self.ring.write(entry + AT_MARK, marked(1, 1));
    }

    /// Counts another life before a request is replayed.
    pub fn begin_again(&mut self, undone: Undone) {
        let Undone { head, started, in_hand } = undone;
        self.ring.write(RingLog::entry(head) + AT_MARK, marked(started + 1, in_hand + 1));
    }

    /// Counts a request as not in hand while it waits for the other half.
    pub fn set_aside(&mut self, head: u16) {
        self.ring.write_in_hand(head, |in_hand| in_hand.saturating_sub(1));
    }

    /// Unmarks a chain that turned out not to be a request.
    pub fn abandon(&mut self, head: u16) {
        self.ring.write(RingLog::entry(head) + AT_MARK, UNMARKED);
    }
}

impl UsedLog {
    /// Returns whether part of the region has been lost.
    pub fn is_broken(&self) -> bool {
        self.ring.region.mapping.is_broken()
    }

    /// Counts a request as in hand again.
    pub fn take_up(&mut self, head: u16) {
        let counts = mutated("frontend.inflight.never-takes-up", true, false);
        if counts {
            self.ring.write_in_hand(head, |in_hand| in_hand + 1);
        }
    }

    /// Takes over a marked request that is about to go to the disk.
    pub fn take_over(&mut self, head: u16) {
        self.in_hand.push(head);
    }

    /// Called when the disk has all started requests: a later death is not attributed to them.
    pub fn handed_over(&mut self) {
        while let Some(head) = self.in_hand.pop() {
            let clears = mutated("frontend.inflight.never-hands-over", true, false);
            if clears {
                self.ring.write_in_hand(head, |_| 0);
            }
        }
    }

    /// Links a completion into the batch that will be published next.
    pub fn complete(&mut self, head: u16) {
        // It may complete while others of its batch are still being submitted. Once it is
        // published, the other half may mark the head anew.
        let has_some = !self.in_hand.is_empty();
        let has_some = mutated("frontend.inflight.hands-over-what-came-back", has_some, false);
        if has_some {
            self.in_hand.retain(|it| *it != head);
        }
        let newest: u16 = self.ring.read(AT_LAST_BATCH_HEAD);
        self.ring.write(RingLog::entry(head) + AT_NEXT, newest);
        let names = mutated("frontend.inflight.leaves-out-last-batch-head", true, false);
        if names {
            self.ring.write(AT_LAST_BATCH_HEAD, head);
        }
        self.batch.push(head);
    }

    /// Clears the marks of a batch; the ring's used index is already `used_index`.
    pub fn published(&mut self, used_index: u16) {
        while let Some(head) = self.batch.pop() {
            self.ring.write(RingLog::entry(head) + AT_MARK, UNMARKED);
        }
        let writes = mutated("frontend.inflight.leaves-out-used-index", true, false);
        if writes {
            self.ring.write(AT_USED_IDX, used_index);
        }
    }
}

impl InflightLog {
    /// Returns the requests that a dead daemon left undone, oldest first. The ring's used index is
    /// `used_index`.
    pub fn recover(&mut self, used_index: u16) -> Vec<Undone> {
        let ring = &self.used.ring;
        if ring.read::<u16>(AT_VERSION) == 0 {
            ring.write(AT_DESC_NUM, ring.queue_size);
            ring.write(AT_USED_IDX, used_index);
            ring.write(AT_VERSION, VERSION);
        }
        let finishes = mutated("frontend.inflight.does-not-finish-publish", true, false);
        if finishes {
            ring.finish_interrupted_publish(used_index);
        }
        let mut undone: Vec<(u64, Undone)> =
            (0..ring.queue_size).filter_map(|head| ring.undone(head)).collect();
        let sorts = mutated("frontend.inflight.replays-out-of-order", true, false);
        if sorts {
            undone.sort_unstable_by_key(|(counter, undone)| (*counter, undone.head));
        }
        let newest = undone.iter().map(|(counter, _)| *counter).max();
        self.avail.counter = newest.map_or(0, |counter| counter.wrapping_add(1));
        undone.into_iter().map(|(_, undone)| undone).collect()
    }
}

#[cfg(test)]
mod tests;
