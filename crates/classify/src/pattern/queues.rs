//! The queues' input to a disk's detector: their last writes, passed on at each flush.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use flowstone_block::{Extent, Published, Seen, lock};

use super::{Detector, Journals};

/// The most writes that a queue remembers: a journal writes just before the guest flushes.
const RECENT_MAX: usize = 64;

/// A queue's last writes since any queue flushed. Locked by its own thread to add one; by another
/// one only when it flushes.
type Recent = Mutex<VecDeque<Extent>>;

/// The detector of a disk, which its queues share.
#[derive(Default)]
pub struct SharedDetector {
    detector: Mutex<Detector>,
    queues: Mutex<BTreeMap<u16, Arc<Recent>>>,
    /// A queue has written since the last flush.
    has_news: AtomicBool,
    journals: Published<Journals>,
}

/// One queue's view of the detector.
pub struct QueueMemory {
    shared: Arc<SharedDetector>,
    recent: Arc<Recent>,
    seen: Seen<Journals>,
    /// The journals last seen, advanced by this queue's writes.
    journals: Journals,
}

impl QueueMemory {
    /// Makes the view of a queue, which one thread at a time runs.
    pub fn new(shared: &Arc<SharedDetector>, queue: u16) -> Self {
        let recent = Arc::clone(lock(&shared.queues).entry(queue).or_default());
        let seen = Seen::of(&shared.journals);
        Self { shared: Arc::clone(shared), recent, journals: seen.last().clone(), seen }
    }

    /// Records a write of the queue. Returns whether it is to a journal.
    pub fn wrote(&mut self, write: Extent) -> bool {
        let mut recent = lock(&self.recent);
        match recent.back_mut() {
            Some(last) if last.end() == write.start() => {
                *last = last.merge(write).expect("they touch");
            }
            _ => {
                if recent.len() == RECENT_MAX {
                    recent.pop_front();
                }
                recent.push_back(write);
            }
        }
        drop(recent);
        // This shared flag is written once between two flushes only.
        if !self.shared.has_news.load(Ordering::Relaxed) {
            self.shared.has_news.store(true, Ordering::Relaxed);
        }
        self.journals.advance(write)
    }

    /// Returns whether a read is in a journal.
    pub fn reads_journal(&self, read: Extent) -> bool {
        self.journals.contain(read)
    }

    /// Takes over the journals that other queues have detected since.
    #[inline]
    pub fn refresh(&mut self) {
        if let Some(journals) = self.seen.newer(&self.shared.journals) {
            self.journals.clone_from(journals);
        }
    }

    /// Processes a flush by this queue: the writes of all queues so far come before their later
    /// ones.
    pub fn flushes(&self) {
        if !self.shared.has_news.swap(false, Ordering::Relaxed) {
            return;
        }
        let mut detector = lock(&self.shared.detector);
        let mut writes = Vec::new();
        for recent in lock(&self.shared.queues).values() {
            writes.extend(lock(recent).drain(..));
        }
        let had_some = !detector.journals().is_empty();
        detector.flushed(&mut writes);
        if had_some || !detector.journals().is_empty() {
            self.shared.journals.publish(detector.journals().clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use flowstone_block::{Sector, SectorCount};

    use super::*;

    #[test]
    fn a_queue_remembers_its_last_64_writes() {
        let shared = Arc::new(SharedDetector::default());
        let mut queue = QueueMemory::new(&shared, 0);
        let extent = |start| Extent::new(Sector::new(start), SectorCount::new(8));
        for nth in 0..200 {
            queue.wrote(extent(16 * nth).expect("eight sectors"));
        }
        let recent = lock(&queue.recent);
        assert_eq!(recent.len(), 64);
        assert_eq!(recent.front().map(|it| it.start().get()), Some(16 * 136));
        assert_eq!(recent.back().map(|it| it.start().get()), Some(16 * 199));
    }
}
