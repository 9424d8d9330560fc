//! What the queues of a disk tell its detector: their last writes, when one of them flushes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flowstone_block::{Extent, Published, Seen};

use super::{Detector, Journals};

/// The most writes that one queue remembers: a journal writes just before the guest flushes.
const RECENT_MAX: usize = 64;

/// A queue's last writes since somebody flushed. Its own thread locks it to add one; another one
/// only when it flushes.
type Recent = Mutex<VecDeque<Extent>>;

/// The detector of a disk, which its queues share.
#[derive(Default)]
pub struct SharedDetector {
    detector: Mutex<Detector>,
    queues: Mutex<BTreeMap<u16, Arc<Recent>>>,
    /// Whether a queue has written since the last flush.
    has_news: AtomicBool,
    journals: Published<Journals>,
}

/// What one queue knows of it.
pub struct QueueMemory {
    shared: Arc<SharedDetector>,
    recent: Arc<Recent>,
    seen: Seen<Journals>,
    /// As they were seen last, and moved on by this queue's writes.
    journals: Journals,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl QueueMemory {
    /// Of a queue with this number; one thread at a time runs it.
    pub fn new(shared: &Arc<SharedDetector>, queue: u16) -> Self {
        let recent = Arc::clone(lock(&shared.queues).entry(queue).or_default());
        let seen = Seen::of(&shared.journals);
        Self { shared: Arc::clone(shared), recent, journals: seen.last().clone(), seen }
    }

    /// The queue writes. Returns whether that is to a journal.
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
        // What others read is written once between two flushes.
        if !self.shared.has_news.load(Ordering::Relaxed) {
            self.shared.has_news.store(true, Ordering::Relaxed);
        }
        self.journals.advance(write)
    }

    /// Returns whether a read is one of a journal.
    pub fn reads_journal(&self, read: Extent) -> bool {
        self.journals.contain(read)
    }

    /// Takes over what other queues have told since.
    #[inline]
    pub fn refresh(&mut self) {
        if let Some(journals) = self.seen.newer(&self.shared.journals) {
            self.journals.clone_from(journals);
        }
    }

    /// The queue flushes: what all queues have written so far comes before what they write from now
    /// on.
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
