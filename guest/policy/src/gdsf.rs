//! Greedy-dual size with frequencies (Cherkasova 1998): evicts the file whose next use would save
//! the least time per byte. If none saves any, that is the least recently used one.

use crate::ordered::Ordered;
use crate::{Access, FileId, Link, Policy};

/// A priority: never NaN, so that it has an order.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Priority(f64);

impl Eq for Priority {}

impl PartialOrd for Priority {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Priority {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// Greedy-dual size with frequencies.
#[derive(Debug)]
pub struct Gdsf {
    budget: u64,
    /// `None`: a use saves no time.
    link: Option<Link>,
    files: Ordered<Priority>,
    /// Priority of the last evicted file, which new priorities start from, so that old counts age.
    floor: f64,
}

impl Gdsf {
    /// Makes an empty cache of `budget` bytes over a link.
    pub fn new(budget: u64, link: Link) -> Self {
        Self { link: Some(link), ..Self::lru(budget) }
    }

    /// Makes an empty cache of `budget` bytes that evicts the least recently used file.
    pub fn lru(budget: u64) -> Self {
        Self { budget, link: None, files: Ordered::new(), floor: 0.0 }
    }

    fn make_room(&mut self, bytes: u64, drops: &mut Vec<FileId>) {
        while self.files.bytes() + bytes > self.budget {
            let Some((priority, file, _)) = self.files.pop_first() else { return };
            self.floor = priority.0;
            drops.push(file);
        }
    }
}

impl Policy for Gdsf {
    fn used(&mut self, access: &Access, drops: &mut Vec<FileId>) -> bool {
        let Access { file, bytes, uses, .. } = *access;
        let was_held = self.files.remove(file).is_some();
        if bytes > self.budget {
            if was_held {
                drops.push(file);
            }
            return false;
        }
        self.make_room(bytes, drops);
        let seconds = self.link.map_or(0.0, |link| link.seconds(bytes));
        let gain = f64::from(uses) * seconds / bytes.max(1) as f64;
        self.files.insert(file, bytes, Priority(self.floor + gain));
        true
    }

    fn forget(&mut self, file: FileId) {
        self.files.remove(file);
    }

    fn set_budget(&mut self, bytes: u64, drops: &mut Vec<FileId>) {
        self.budget = bytes;
        self.make_room(0, drops);
    }

    fn holds(&self, file: FileId) -> bool {
        self.files.contains(file)
    }

    fn held_bytes(&self) -> u64 {
        self.files.bytes()
    }
}
