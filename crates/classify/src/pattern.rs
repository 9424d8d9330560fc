//! A journal known by how it is written, for guests that tell nothing: encrypted disks, unknown
//! file systems.
//!
//! The journal of ext4 (jbd2) writes each transaction in two steps at the place where the last one
//! ended: a body of at least two blocks, a flush, one block that commits it, a flush. So a stream
//! of writes that continues over flushes, and in which bodies and single blocks take turns, is a
//! journal; files that are appended to, with or without a flush after each write, lack the turns.
//! The journal is cyclic: when a second stream runs into where the first one began, its whole range
//! is known. Our detector is ours: the paper (PDC, Kim and Lee 2016) does not describe one.
//!
//! Between two flushes the order of writes means nothing: a guest spreads them over its queues, and
//! dm-crypt changes their order. So each queue remembers its last writes, and a queue that flushes
//! puts together those of all queues ([`queues`]).

pub mod queues;

use flowstone_block::Extent;

/// Transactions in a row before a stream is taken for a journal.
const COMMITS_MIN: u32 = 8;
/// A commit is one block, of at most 4 KiB.
const COMMIT_SECTORS_MAX: u64 = 8;
/// A body is a descriptor and at least one block of metadata.
const BODY_BLOCKS_MIN: u64 = 2;
/// Streams that may turn out to be journals.
const CANDIDATES_MAX: usize = 64;
/// Journals of one disk: one for each file system.
const JOURNALS_MAX: usize = 8;
/// How far from the expected place a write may begin; 64 KiB. A transaction is written in pieces,
/// which come in any order.
const NEAR_SECTORS: u64 = 128;
/// The most that a journal grows by between two flushes before its end is known; 4 MiB. What is
/// written behind its end is taken for it up to there.
const GROWTH_SECTORS_MAX: u64 = 8192;
/// The beginning of a journal has been written so many flushes before it is found to have begun
/// again.
const BEGINNING_FLUSHES: u64 = 8;
/// So many writes in it that do not continue it, and it is none any more.
const STRIKES_MAX: u8 = 8;

/// A range that is written like a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Journal {
    start: u64,
    end: u64,
    /// Where the next write is expected.
    head: u64,
    /// Whether `start` and `end` are the journal's own: it has been seen to begin again.
    is_whole: bool,
    /// Where it goes on if the last write at its start was more than one of the block there: a
    /// journal's own superblock lies before it, and is written at any time.
    begun_again: Option<u64>,
    /// It has just begun again: what led to its start is a part of it.
    is_joining: bool,
    /// How much it has grown since the last flush.
    growth: u64,
    strikes: u8,
}

/// The journals of a disk that are known.
#[derive(Clone, Debug, Default)]
pub struct Journals(Vec<Journal>);

impl Journals {
    /// Returns whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether a read is one of a journal.
    pub fn contain(&self, extent: Extent) -> bool {
        self.0.iter().any(|journal| journal.contains(extent))
    }

    /// Returns whether a write is one of a journal, which then goes on behind it.
    pub fn advance(&mut self, write: Extent) -> bool {
        let takes = |it: &Journal| it.is_near(write) || it.contains(write);
        let Some(index) = self.0.iter().position(takes) else { return false };
        let took = self.0[index].advance(write);
        if self.0[index].strikes > STRIKES_MAX {
            self.0.swap_remove(index);
            return false;
        }
        if took {
            self.join(index);
        }
        took
    }

    fn flushed(&mut self) {
        self.0.iter_mut().for_each(|journal| journal.growth = 0);
    }

    fn add(&mut self, journal: Journal) {
        if self.0.len() == JOURNALS_MAX {
            self.0.remove(0);
        }
        self.0.push(journal);
    }

    /// A journal that has come to where another one begins is that one, at its next turn.
    fn join(&mut self, index: usize) {
        let this = self.0[index];
        let met = |it: &Journal| this.start < it.start && it.start <= this.end;
        if let Some(other) = self.0.iter().position(met) {
            let end = self.0[other].end.max(this.end);
            self.0[index] = Journal { end, is_whole: true, ..this };
            self.0.swap_remove(other);
        }
    }
}

impl Journal {
    /// A stream that has been written from here to there.
    fn new(start: u64, head: u64) -> Self {
        let (is_whole, begun_again, is_joining, growth, strikes) = (false, None, false, 0, 0);
        Self { start, end: head, head, is_whole, begun_again, is_joining, growth, strikes }
    }

    fn contains(&self, extent: Extent) -> bool {
        self.start <= extent.start().get() && extent.end().get() <= self.end
    }

    /// Returns whether a write begins about where the next one is expected.
    fn is_near(&self, write: Extent) -> bool {
        write.start().get().abs_diff(self.head) < NEAR_SECTORS && write.start().get() >= self.start
    }

    fn advance(&mut self, write: Extent) -> bool {
        let (start, end) = (write.start().get(), write.end().get());
        if end > self.end {
            self.growth += end - self.end;
            if self.is_whole || self.growth > GROWTH_SECTORS_MAX {
                return false;
            }
            self.end = end;
        }
        let near = |place: u64| (place..place + NEAR_SECTORS).contains(&start);
        if self.is_near(write) {
            // Its pieces may come in any order.
            (self.head, self.strikes) = (self.head.max(end), 0);
        } else if self.begun_again.is_some_and(near) {
            (self.head, self.is_whole, self.begun_again, self.strikes) = (end, true, None, 0);
            self.is_joining = true;
        } else if near(self.start) {
            self.begun_again = Some(end);
        } else {
            self.strikes += 1;
        }
        true
    }
}

/// What all queues of a disk have told.
#[derive(Debug, Default)]
pub struct Detector {
    flushes: u64,
    candidates: Vec<Candidate>,
    journals: Journals,
}

/// A stream of writes, each where the one before it ended.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    start: u64,
    head: u64,
    /// What has been written since the last flush, in sectors, and which flush that was.
    run: u64,
    flush: u64,
    /// The body that waits for its commit, or 0.
    body: u64,
    /// Transactions in a row.
    commits: u32,
}

impl Detector {
    /// The journals that are known.
    pub fn journals(&self) -> &Journals {
        &self.journals
    }

    /// The guest flushes, and has written this since it did so last, in any order. Leaves `writes`
    /// empty.
    pub fn flushed(&mut self, writes: &mut Vec<Extent>) {
        self.flushes += 1;
        writes.sort_unstable_by_key(|write| write.start());
        writes.dedup_by(|next, write| {
            let touches = write.end() == next.start();
            if touches {
                *write = write.merge(*next).expect("they touch");
            }
            touches
        });
        for write in writes.drain(..) {
            if !self.journals.advance(write) {
                self.advance_candidates(write);
            }
        }
        self.join_beginnings();
        self.journals.flushed();
    }

    /// A journal that was first seen behind its start comes round to where it was seen: the stream
    /// that has led there lately, too short to be taken for a journal by itself, is its beginning.
    fn join_beginnings(&mut self) {
        for journal in &mut self.journals.0 {
            if !std::mem::take(&mut journal.is_joining) {
                continue;
            }
            let leads_there = |it: &Candidate| {
                let reached = journal.start..journal.start + NEAR_SECTORS;
                it.start < journal.start
                    && reached.contains(&it.head)
                    && it.flush + BEGINNING_FLUSHES >= self.flushes
            };
            if let Some(index) = self.candidates.iter().position(leads_there) {
                journal.start = self.candidates.swap_remove(index).start;
            }
        }
    }

    fn advance_candidates(&mut self, write: Extent) {
        let at_head = |it: &Candidate| it.head == write.start().get();
        let Some(index) = self.candidates.iter().position(at_head) else {
            self.add(write);
            return;
        };
        let candidate = &mut self.candidates[index];
        candidate.advance(write, self.flushes);
        if candidate.commits >= COMMITS_MIN {
            let Candidate { start, head, .. } = self.candidates.swap_remove(index);
            self.journals.add(Journal::new(start, head));
        }
    }

    /// The one that is least like a journal makes room.
    fn add(&mut self, write: Extent) {
        if self.candidates.len() == CANDIDATES_MAX {
            let least = self.candidates.iter().enumerate();
            let least = least.min_by_key(|(_, it)| (it.commits, it.flush)).map(|(index, _)| index);
            self.candidates.swap_remove(least.expect("there are some"));
        }
        self.candidates.push(Candidate {
            start: write.start().get(),
            head: write.end().get(),
            run: write.count().get(),
            flush: self.flushes,
            body: 0,
            commits: 0,
        });
    }
}

impl Candidate {
    fn advance(&mut self, write: Extent, flush: u64) {
        if flush != self.flush {
            if self.run <= COMMIT_SECTORS_MAX && self.body >= BODY_BLOCKS_MIN * self.run {
                self.commits += 1;
                self.body = 0;
            } else {
                // Two bodies in a row are no transactions.
                self.commits = if self.body == 0 { self.commits } else { 0 };
                self.body = self.run;
            }
            (self.run, self.flush) = (0, flush);
        }
        self.run += write.count().get();
        self.head = write.end().get();
    }
}

#[cfg(test)]
mod tests;
