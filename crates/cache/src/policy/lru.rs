//! Least recently used: the yardstick.

use super::{Access, Outcome, Policy};
use crate::entries::Entries;

/// Keeps what was used last.
#[derive(Debug)]
pub struct Lru {
    capacity: usize,
    entries: Entries<1>,
}

impl Lru {
    /// Keeps so many blocks, at least one.
    pub fn new(capacity: usize) -> Self {
        Self { capacity: capacity.max(1), entries: Entries::new() }
    }
}

impl Policy for Lru {
    fn access(&mut self, access: Access) -> Outcome {
        if let Some((id, _)) = self.entries.find(access.block) {
            self.entries.move_to_front(id, 0);
            return Outcome::Hit;
        }
        if self.entries.len(0) == self.capacity
            && let Some(last) = self.entries.back(0)
        {
            self.entries.remove(last);
        }
        self.entries.insert(access.block, 0);
        Outcome::Inserted
    }

    fn len(&self) -> usize {
        self.entries.len(0)
    }
}
