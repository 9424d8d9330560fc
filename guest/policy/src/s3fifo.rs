//! S3-FIFO (Yang and others, SOSP 2023) by bytes: a small queue that most files leave after one
//! use, a main queue for the rest, and a ghost list of files evicted from the small one.

use std::collections::HashMap;

use crate::ordered::Ordered;
use crate::{Access, FileId, Policy};

/// Share of the small queue in the budget.
const SMALL_PART: f64 = 0.1;
/// Limit of the use counter.
const USES_MAX: u8 = 3;
/// Divisor of the budget: larger files are not held, since one of them would empty the small queue.
const LARGEST_PART: u64 = 8;

/// S3-FIFO by bytes.
#[derive(Debug)]
pub struct S3Fifo {
    budget: u64,
    small: Ordered<()>,
    main: Ordered<()>,
    ghosts: Ordered<()>,
    /// Uses since a file entered its queue.
    uses: HashMap<FileId, u8>,
}

impl S3Fifo {
    /// Makes an empty cache of `budget` bytes.
    pub fn new(budget: u64) -> Self {
        let [small, main, ghosts] = [(); 3].map(|()| Ordered::new());
        Self { budget, small, main, ghosts, uses: HashMap::new() }
    }

    fn make_room(&mut self, bytes: u64, drops: &mut Vec<FileId>) {
        while self.held_bytes() + bytes > self.budget {
            let small_max = (self.budget as f64 * SMALL_PART) as u64;
            let from_small = self.small.bytes() > small_max || self.main.bytes() == 0;
            let went = if from_small { self.leave_small() } else { self.leave_main() };
            match went {
                Some(Some(file)) => drops.push(file),
                Some(None) => {}
                None => return,
            }
        }
        self.bound_ghosts();
    }

    /// Removes the oldest file of the small queue. `Some(None)`: it has moved to the main queue.
    fn leave_small(&mut self) -> Option<Option<FileId>> {
        let ((), file, bytes) = self.small.pop_first().or_else(|| self.main.pop_first())?;
        let uses = self.uses.remove(&file).unwrap_or(0);
        if uses > 0 {
            self.main.insert(file, bytes, ());
            return Some(None);
        }
        self.ghosts.insert(file, bytes, ());
        Some(Some(file))
    }

    /// Removes the oldest file of the main queue. `Some(None)`: it has moved to its end.
    fn leave_main(&mut self) -> Option<Option<FileId>> {
        let ((), file, bytes) = self.main.pop_first()?;
        match self.uses.remove(&file).unwrap_or(0) {
            0 => Some(Some(file)),
            uses => {
                self.main.insert(file, bytes, ());
                self.uses.insert(file, uses - 1);
                Some(None)
            }
        }
    }

    /// Limits the ghost list to as many bytes as the budget.
    fn bound_ghosts(&mut self) {
        while self.ghosts.bytes() > self.budget {
            self.ghosts.pop_first();
        }
    }

    /// Counts a use of a file that is held with this size.
    fn hit(&mut self, file: FileId, bytes: u64) -> bool {
        let held = self.small.bytes_of(file).or_else(|| self.main.bytes_of(file));
        if held != Some(bytes) {
            return false;
        }
        let uses = self.uses.entry(file).or_insert(0);
        *uses = (*uses + 1).min(USES_MAX);
        true
    }
}

impl Policy for S3Fifo {
    fn used(&mut self, access: &Access, drops: &mut Vec<FileId>) -> bool {
        let Access { file, bytes, .. } = *access;
        if self.hit(file, bytes) {
            return true;
        }
        // New, or held with another size: then it is inserted again, in the same queue.
        let was_held = self.holds(file);
        let is_known = self.ghosts.remove(file).is_some() || self.main.contains(file);
        self.forget(file);
        if bytes > self.budget / LARGEST_PART {
            if was_held {
                drops.push(file);
            }
            return false;
        }
        self.make_room(bytes, drops);
        let queue = if is_known { &mut self.main } else { &mut self.small };
        queue.insert(file, bytes, ());
        true
    }

    fn forget(&mut self, file: FileId) {
        self.small.remove(file);
        self.main.remove(file);
        self.ghosts.remove(file);
        self.uses.remove(&file);
    }

    fn set_budget(&mut self, bytes: u64, drops: &mut Vec<FileId>) {
        self.budget = bytes;
        self.make_room(0, drops);
    }

    fn holds(&self, file: FileId) -> bool {
        self.small.contains(file) || self.main.contains(file)
    }

    fn held_bytes(&self) -> u64 {
        self.small.bytes() + self.main.bytes()
    }
}
