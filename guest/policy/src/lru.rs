//! Least recently used: evicts the file whose last use is oldest.

use crate::ordered::Ordered;
use crate::{Access, FileId, Order, Policy};

/// Least recently used, by bytes.
#[derive(Debug)]
pub struct Lru {
    budget: u64,
    // All have the same rank: the order is that of their last use.
    files: Ordered<()>,
}

impl Lru {
    /// Makes an empty cache of `budget` bytes.
    pub fn new(budget: u64) -> Self {
        Self { budget, files: Ordered::new() }
    }

    fn make_room(&mut self, bytes: u64, orders: &mut Vec<Order>) {
        while self.files.bytes() + bytes > self.budget {
            let Some(((), file, _)) = self.files.pop_first() else { return };
            orders.push(Order::Drop(file));
        }
    }
}

impl Policy for Lru {
    fn used(&mut self, access: &Access, orders: &mut Vec<Order>) -> bool {
        let Access { file, bytes, .. } = *access;
        let was_held = self.files.remove(file).is_some();
        if bytes > self.budget {
            if was_held {
                orders.push(Order::Drop(file));
            }
            return false;
        }
        self.make_room(bytes, orders);
        self.files.insert(file, bytes, ());
        true
    }

    fn forget(&mut self, file: FileId) {
        self.files.remove(file);
    }

    fn set_budget(&mut self, bytes: u64, orders: &mut Vec<Order>) {
        self.budget = bytes;
        self.make_room(0, orders);
    }

    fn holds(&self, file: FileId) -> bool {
        self.files.contains(file)
    }

    fn held_bytes(&self) -> u64 {
        self.files.bytes()
    }
}
