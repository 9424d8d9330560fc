//! Blocks in queues: a table that finds a block, and links that order them. An entry of 32 bytes and its
//! place in the table are all that a policy needs per block.

use hashbrown::HashMap;

use crate::BlockId;

/// No entry.
const NONE: u32 = u32::MAX;

/// Names an entry while it is in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryId(u32);

/// A block that a policy remembers.
#[derive(Debug)]
struct Entry {
    block: BlockId,
    /// Towards the front.
    before: u32,
    /// Towards the back.
    after: u32,
    /// What the policy counts.
    count: u32,
    queue: u8,
}

#[derive(Clone, Copy, Debug)]
struct Queue {
    front: u32,
    back: u32,
    len: usize,
}

/// Blocks, each in one of `N` queues.
#[derive(Debug)]
pub struct Entries<const N: usize> {
    table: HashMap<BlockId, u32>,
    entries: Vec<Entry>,
    free: Vec<u32>,
    queues: [Queue; N],
}

impl<const N: usize> Entries<N> {
    pub fn new() -> Self {
        let queues = [Queue { front: NONE, back: NONE, len: 0 }; N];
        Self { table: HashMap::new(), entries: Vec::new(), free: Vec::new(), queues }
    }

    /// How many blocks are in a queue.
    pub fn len(&self, queue: usize) -> usize {
        self.queues[queue].len
    }

    /// A block, and the queue that it is in.
    pub fn find(&self, block: BlockId) -> Option<(EntryId, usize)> {
        let id = *self.table.get(&block)?;
        Some((EntryId(id), usize::from(self.entries[id as usize].queue)))
    }

    pub fn count(&mut self, id: EntryId) -> &mut u32 {
        &mut self.entries[id.0 as usize].count
    }

    /// A new block goes to the front of a queue, counted as 0.
    pub fn insert(&mut self, block: BlockId, queue: usize) -> EntryId {
        let entry = Entry { block, before: NONE, after: NONE, count: 0, queue: 0 };
        let id = if let Some(id) = self.free.pop() {
            self.entries[id as usize] = entry;
            id
        } else {
            self.entries.push(entry);
            (self.entries.len() - 1) as u32
        };
        self.table.insert(block, id);
        self.link(id, queue);
        EntryId(id)
    }

    /// A block goes to the front of a queue, which may be its own.
    pub fn move_to_front(&mut self, id: EntryId, queue: usize) {
        self.unlink(id.0);
        self.link(id.0, queue);
    }

    /// The block at the back of a queue.
    pub fn back(&self, queue: usize) -> Option<EntryId> {
        let back = self.queues[queue].back;
        (back != NONE).then_some(EntryId(back))
    }

    /// Forgets a block.
    pub fn remove(&mut self, id: EntryId) {
        self.unlink(id.0);
        self.table.remove(&self.entries[id.0 as usize].block);
        self.free.push(id.0);
    }

    fn link(&mut self, id: u32, queue: usize) {
        let front = self.queues[queue].front;
        let entry = &mut self.entries[id as usize];
        (entry.before, entry.after, entry.queue) = (NONE, front, queue as u8);
        match self.entries.get_mut(front as usize) {
            Some(next) => next.before = id,
            None => self.queues[queue].back = id,
        }
        self.queues[queue].front = id;
        self.queues[queue].len += 1;
    }

    fn unlink(&mut self, id: u32) {
        let Entry { before, after, queue, .. } = self.entries[id as usize];
        let queue = usize::from(queue);
        match self.entries.get_mut(before as usize) {
            Some(entry) => entry.after = after,
            None => self.queues[queue].front = after,
        }
        match self.entries.get_mut(after as usize) {
            Some(entry) => entry.before = before,
            None => self.queues[queue].back = before,
        }
        self.queues[queue].len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// The same steps on plain queues.
    #[test]
    fn entries_are_queues() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let mut entries = Entries::<3>::new();
        let mut model: [VecDeque<u64>; 3] = Default::default();
        for _ in 0..20_000 {
            let block = random.u64(0..60);
            let queue = random.usize(0..3);
            let place = model.iter().position(|it| it.contains(&block));
            let found = entries.find(BlockId(block));
            assert_eq!(found.map(|(_, queue)| queue), place);
            match (found, random.u8(0..3)) {
                (None, _) => {
                    entries.insert(BlockId(block), queue);
                    model[queue].push_front(block);
                }
                (Some((id, from)), 0) => {
                    entries.remove(id);
                    model[from].retain(|it| *it != block);
                }
                (Some((id, from)), 1) => {
                    entries.move_to_front(id, queue);
                    model[from].retain(|it| *it != block);
                    model[queue].push_front(block);
                }
                (Some((id, from)), _) => *entries.count(id) += u32::from(from == queue),
            }
            for (queue, model) in model.iter().enumerate() {
                assert_eq!(entries.len(queue), model.len());
                let back = entries.back(queue).map(|id| entries.entries[id.0 as usize].block.0);
                assert_eq!(back, model.back().copied());
            }
        }
        assert!(entries.entries.len() <= 60);
    }
}
