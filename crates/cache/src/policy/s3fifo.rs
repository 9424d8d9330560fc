//! S3-FIFO (Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023), with the sizes that
//! its authors fix as parameters.
//!
//! New blocks enter a small queue. What has been used again when it comes to the end of that goes on to the
//! main queue, where a use gives a block another turn; what has not is given up and remembered without its
//! data. What comes back while it is remembered goes to the main queue at once.

use super::{Access, Outcome, Policy};
use crate::entries::{Entries, EntryId};

/// More uses than that are not counted.
const COUNT_MAX: u32 = 3;

const SMALL: usize = 0;
const MAIN: usize = 1;
const GHOSTS: usize = 2;

/// How the capacity is shared out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// The part of the capacity that the small queue takes.
    pub small: f64,
    /// Uses, while it is in the small queue, that let a block go on to the main queue.
    pub promote: u32,
    /// How many blocks are remembered without their data, in parts of the capacity.
    pub ghosts: f64,
}

impl Shape {
    /// What the paper fixes, as its authors' simulator has it.
    pub const PAPER: Self = Self { small: 0.1, promote: 2, ghosts: 0.9 };
}

/// Keeps what is used again.
#[derive(Debug)]
pub struct S3Fifo {
    capacity: usize,
    shape: Shape,
    entries: Entries<3>,
}

impl S3Fifo {
    /// Keeps so many blocks, at least two.
    pub fn new(capacity: usize, shape: Shape) -> Self {
        Self { capacity: capacity.max(2), shape, entries: Entries::new() }
    }

    /// Shares the capacity out in another way from now on.
    pub fn reshape(&mut self, shape: Shape) {
        self.shape = shape;
    }

    fn part(&self, share: f64) -> usize {
        (self.capacity as f64 * share) as usize
    }

    /// Gives one block up.
    fn evict(&mut self) {
        loop {
            let small_is_full = self.entries.len(SMALL) >= self.part(self.shape.small).max(1);
            let from_small = self.entries.back(SMALL).filter(|_| small_is_full);
            let gone = match (from_small, self.entries.back(MAIN)) {
                (Some(id), _) => self.end_of_small(id),
                (None, Some(id)) => self.end_of_main(id),
                (None, None) => match self.entries.back(SMALL) {
                    Some(id) => self.end_of_small(id),
                    None => true,
                },
            };
            if gone {
                return;
            }
        }
    }

    fn end_of_small(&mut self, id: EntryId) -> bool {
        let uses = std::mem::take(self.entries.count(id));
        let goes_on = uses >= self.shape.promote;
        self.entries.move_to_front(id, if goes_on { MAIN } else { GHOSTS });
        while self.entries.len(GHOSTS) > self.part(self.shape.ghosts)
            && let Some(oldest) = self.entries.back(GHOSTS)
        {
            self.entries.remove(oldest);
        }
        !goes_on
    }

    fn end_of_main(&mut self, id: EntryId) -> bool {
        let uses = self.entries.count(id);
        if *uses == 0 {
            self.entries.remove(id);
            return true;
        }
        *uses -= 1;
        self.entries.move_to_front(id, MAIN);
        false
    }
}

impl Policy for S3Fifo {
    fn access(&mut self, access: Access) -> Outcome {
        let found = self.entries.find(access.block);
        if let Some((id, SMALL | MAIN)) = found {
            let uses = self.entries.count(id);
            *uses = (*uses + 1).min(COUNT_MAX);
            return Outcome::Hit;
        }
        if let Some((ghost, _)) = found {
            // So that making room does not forget it.
            self.entries.remove(ghost);
        }
        while self.len() >= self.capacity {
            self.evict();
        }
        self.entries.insert(access.block, if found.is_some() { MAIN } else { SMALL });
        Outcome::Inserted
    }

    fn len(&self) -> usize {
        self.entries.len(SMALL) + self.entries.len(MAIN)
    }
}
