//! Blocks in queues: a hash table that finds a block, and links that order them. An entry of 20
//! bytes and its slot in the table, 8 bytes, are all that a policy needs per block.

use crate::buckets::Buckets;
use crate::names::{BlockId, Place};
use crate::prefetch::prefetch;

/// No entry.
const NONE: u32 = u32::MAX;

/// Greatest count: the rest of the word is the time of the last use, and the queue.
const COUNT_MAX: u32 = (1 << TIME_SHIFT) - 1;
const TIME_SHIFT: u32 = 8;
const QUEUE_SHIFT: u32 = 20;
/// Times are modulo this.
const TIMES: u32 = 1 << (QUEUE_SHIFT - TIME_SHIFT);
/// Times in which as many blocks are inserted as there is room for.
const TIMES_PER_ROUND: usize = 256;
/// Greatest age of an entry that was looked at: less than half of all times by more than a round of
/// looks takes, so that no age wraps.
const AGE_MAX: u32 = TIMES / 4;
/// Most queues that there can be.
pub const QUEUES_MAX: usize = 1 << (u32::BITS - QUEUE_SHIFT);

/// A time, counted in insertions, modulo 4,096.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Time(u32);

impl Time {
    const fn new(time: u64) -> Self {
        Self((time % TIMES as u64) as u32)
    }

    /// Returns whether this is before another time, if neither is more than 2,047 before the other.
    pub const fn is_before(self, other: Self) -> bool {
        let distance = other.0.wrapping_sub(self.0) % TIMES;
        distance != 0 && distance < TIMES / 2
    }
}

/// A block that a policy remembers. Packed: there are millions of them.
#[derive(Clone, Copy, Debug)]
#[repr(C, packed(4))]
struct Entry {
    block: BlockId,
    /// Next entry towards the front.
    before: u32,
    /// Next entry towards the back; of a free entry, the next free one.
    after: u32,
    /// The policy's count, the time of the last use, and the queue.
    word: u32,
}

impl Entry {
    const fn queue(&self) -> usize {
        (self.word >> QUEUE_SHIFT) as usize
    }

    const fn time(&self) -> Time {
        Time(self.word >> TIME_SHIFT & (TIMES - 1))
    }

    const fn set_time(&mut self, time: Time) {
        self.word = self.word & !((TIMES - 1) << TIME_SHIFT) | time.0 << TIME_SHIFT;
    }
}

#[derive(Clone, Copy, Debug)]
struct Queue {
    front: u32,
    back: u32,
    len: usize,
}

/// Blocks, each in one of several queues.
#[derive(Debug)]
pub struct Entries {
    table: Buckets,
    entries: Vec<Entry>,
    /// First free entry.
    free: u32,
    queues: Vec<Queue>,
    inserted: u64,
    inserted_per_time: u64,
    now: Time,
    /// The entry that is looked at next for its age.
    looked_at: usize,
}

impl Entries {
    /// Makes queues with room for `blocks`: moving a large table later would take milliseconds.
    pub fn with_capacity(blocks: usize, queues: usize) -> Self {
        let mut entries = Self {
            table: Buckets::with_capacity(blocks),
            entries: Vec::with_capacity(blocks),
            free: NONE,
            queues: Vec::new(),
            inserted: 0,
            inserted_per_time: (blocks / TIMES_PER_ROUND).max(1) as u64,
            now: Time::default(),
            looked_at: 0,
        };
        entries.have_queues(queues);
        entries
    }

    /// Returns the number of queues.
    pub fn queues(&self) -> usize {
        self.queues.len()
    }

    /// Adds queues up to `queues`, at most [`QUEUES_MAX`].
    pub fn have_queues(&mut self, queues: usize) {
        let queues = queues.min(QUEUES_MAX).max(self.queues.len());
        self.queues.resize(queues, Queue { front: NONE, back: NONE, len: 0 });
    }

    /// Returns the number of blocks in a queue.
    pub fn len(&self, queue: usize) -> usize {
        self.queues[queue].len
    }

    /// Returns the place of a block, and its queue.
    pub fn find(&self, block: BlockId) -> Option<(Place, usize)> {
        let is_it = |id| self.block(Place(id)) == block;
        let id = self.table.find(block, is_it)?;
        Some((Place(id), self.entries[id as usize].queue()))
    }

    /// Prefetches what [`find`](Self::find) and [`guess`](Self::guess) read for a block.
    pub fn prefetch(&self, block: BlockId) {
        self.table.prefetch(block);
    }

    /// Returns the probable place of a block, and prefetches its entry.
    pub fn guess(&self, block: BlockId) -> Option<Place> {
        let id = self.table.guess(block)?;
        prefetch(&raw const self.entries[id as usize]);
        Some(Place(id))
    }

    /// Returns the block of an entry.
    pub fn block(&self, place: Place) -> BlockId {
        self.entries[place.0 as usize].block
    }

    /// Returns the queue of an entry.
    pub fn queue(&self, place: Place) -> usize {
        self.entries[place.0 as usize].queue()
    }

    /// Returns the count of an entry.
    pub fn count(&self, place: Place) -> u32 {
        self.entries[place.0 as usize].word & COUNT_MAX
    }

    /// Sets the count of an entry, saturating.
    pub fn set_count(&mut self, place: Place, count: u32) {
        let word = &mut self.entries[place.0 as usize].word;
        *word = *word & !COUNT_MAX | count.min(COUNT_MAX);
    }

    /// Returns the time at which an entry was inserted or [touched](Self::touch) last.
    pub fn last_use(&self, place: Place) -> Time {
        self.entries[place.0 as usize].time()
    }

    /// Sets the time of an entry to now.
    pub fn touch(&mut self, place: Place) {
        self.entries[place.0 as usize].set_time(self.now);
    }

    /// Returns how many blocks have been inserted.
    pub fn inserted(&self) -> u64 {
        self.inserted
    }

    /// Bounds the age of the next entry.
    fn bound_age(&mut self) {
        let oldest = Time(self.now.0.wrapping_sub(AGE_MAX) % TIMES);
        if let Some(entry) = self.entries.get_mut(self.looked_at)
            && entry.time().is_before(oldest)
        {
            entry.set_time(oldest);
        }
        self.looked_at = if self.looked_at < self.entries.len() { self.looked_at + 1 } else { 0 };
    }

    /// Adds a new block at the front of a queue, with a count of 0.
    pub fn insert(&mut self, block: BlockId, queue: usize) -> Place {
        self.inserted += 1;
        self.now = Time::new(self.inserted / self.inserted_per_time);
        self.bound_age();
        let word = self.now.0 << TIME_SHIFT;
        let entry = Entry { block, before: NONE, after: NONE, word };
        let id = if let Some(unused) = self.entries.get_mut(self.free as usize) {
            let id = std::mem::replace(&mut self.free, unused.after);
            *unused = entry;
            id
        } else {
            self.entries.push(entry);
            (self.entries.len() - 1) as u32
        };
        let Self { table, entries, .. } = self;
        table.insert(block, id, |id| entries[id as usize].block);
        self.link(id, queue);
        Place(id)
    }

    /// Moves a block to the front of a queue, which may be its own.
    pub fn move_to_front(&mut self, place: Place, queue: usize) {
        self.unlink(place.0);
        self.link(place.0, queue);
    }

    /// Returns the block at the back of a queue.
    pub fn back(&self, queue: usize) -> Option<Place> {
        let back = self.queues[queue].back;
        (back != NONE).then_some(Place(back))
    }

    /// Removes a block.
    pub fn remove(&mut self, place: Place) {
        self.prefetch_before(place.0);
        self.unlink(place.0);
        self.table.remove(self.block(place), place.0);
        self.entries[place.0 as usize].after = std::mem::replace(&mut self.free, place.0);
    }

    /// Prefetches for the next removal: removed blocks are mostly at the back of a queue, so the
    /// entry before this one follows. Prefetches its slot in the table and the entry before it.
    fn prefetch_before(&self, id: u32) {
        let before = self.entries[id as usize].before;
        if let Some(next) = self.entries.get(before as usize) {
            self.table.prefetch(next.block);
            if let Some(following) = self.entries.get(next.before as usize) {
                prefetch(&raw const *following);
            }
        }
    }

    fn link(&mut self, id: u32, queue: usize) {
        let front = self.queues[queue].front;
        let entry = &mut self.entries[id as usize];
        (entry.before, entry.after) = (NONE, front);
        entry.word = entry.word & ((1 << QUEUE_SHIFT) - 1) | (queue as u32) << QUEUE_SHIFT;
        match self.entries.get_mut(front as usize) {
            Some(next) => next.before = id,
            None => self.queues[queue].back = id,
        }
        self.queues[queue].front = id;
        self.queues[queue].len += 1;
    }

    fn unlink(&mut self, id: u32) {
        let entry = self.entries[id as usize];
        let (before, after, queue) = (entry.before, entry.after, entry.queue());
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

    #[test]
    fn times_follow_each_other_round() {
        for (one, other, is_before) in
            [(0, 1, true), (1, 0, false), (5, 5, false), (4095, 4096, true), (10, 2058, false)]
        {
            assert_eq!(Time::new(one).is_before(Time::new(other)), is_before, "{one} {other}");
        }
    }

    #[test]
    fn an_entry_has_the_time_of_its_last_use() {
        let mut entries = Entries::with_capacity(512, 3);
        let place = entries.insert(BlockId(1), 2);
        let after_insertion = entries.last_use(place);
        (2..512).for_each(|block| _ = entries.insert(BlockId(block), 0));
        entries.set_count(place, u32::MAX);
        entries.move_to_front(place, 1);
        assert_eq!(entries.last_use(place), after_insertion);
        entries.touch(place);
        assert!(after_insertion.is_before(entries.last_use(place)));
        assert_eq!((entries.queue(place), entries.count(place)), (1, COUNT_MAX));
    }

    /// The same steps on plain queues.
    #[test]
    fn entries_are_queues() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let mut entries = Entries::with_capacity(0, 3);
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
                (Some((id, from)), _) => {
                    let count = entries.count(id) + u32::from(from == queue);
                    entries.set_count(id, count);
                    assert_eq!(
                        (entries.count(id), entries.find(BlockId(block)).unwrap().1),
                        (count, from)
                    );
                    entries.set_count(id, u32::MAX);
                    assert_eq!(entries.count(id), COUNT_MAX);
                    entries.set_count(id, count);
                }
            }
            for (queue, model) in model.iter().enumerate() {
                assert_eq!(entries.len(queue), model.len());
                let back = entries.back(queue).map(|place| entries.block(place).0);
                assert_eq!(back, model.back().copied());
            }
        }
        assert!(entries.entries.len() <= 60);
    }
}
