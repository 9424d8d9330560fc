//! Detects a journal by its write pattern, for guests that give no other information: encrypted
//! disks, unknown file systems.
//!
//! The journal of ext4 (jbd2) writes each transaction in two steps, starting where the last one
//! ended: a body of at least two blocks, a flush, one commit block, a flush. So a sequential stream
//! of writes that continues over flushes, and in which bodies and single blocks alternate, is a
//! journal; files that are appended to, with or without a flush after each write, do not alternate.
//! The journal is cyclic: when a second stream reaches the start of the first, its whole range is
//! known. The detector is our own: the paper (PDC, Kim and Lee 2016) does not describe one.
//!
//! Writes between two flushes have no order: a guest spreads them over its queues, and dm-crypt
//! reorders them. So each queue remembers its last writes, and a queue that flushes combines those
//! of all queues ([`queues`]).

pub mod queues;

use flowstone_block::Extent;

/// Consecutive transactions before a stream is taken for a journal.
const COMMITS_MIN: u32 = 8;
/// Size limit of a commit: one block of at most 4 KiB.
const COMMIT_SECTORS_MAX: u64 = 8;
/// Least blocks of a body: a descriptor and one block of metadata.
const BODY_BLOCKS_MIN: u64 = 2;
/// Streams that may turn out to be journals.
const CANDIDATES_MAX: usize = 64;
/// Journals of one disk: one per file system.
const JOURNALS_MAX: usize = 8;
/// Distance from the expected position within which a write may begin; 64 KiB. A transaction is
/// written in pieces, in any order.
const NEAR_SECTORS: u64 = 128;
/// Growth limit of a journal between two flushes while its end is unknown; 4 MiB. Writes behind its
/// end are taken for it up to this.
const GROWTH_SECTORS_MAX: u64 = 8192;
/// Flushes since a journal's beginning was written within which it is recognised to have wrapped
/// around.
const BEGINNING_FLUSHES: u64 = 8;
/// Non-sequential writes within a journal after which it is dropped.
const STRIKES_MAX: u8 = 8;

/// A range with the write pattern of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Journal {
    start: u64,
    end: u64,
    /// The expected position of the next write.
    head: u64,
    /// `start` and `end` are the journal's own: it has been seen to wrap around.
    is_whole: bool,
    /// Where it continues if the last write at its start was more than one of the block there: the
    /// journal's own superblock is in front of it, and is written at any time.
    begun_again: Option<u64>,
    /// It has just wrapped around: the stream that led to its start is a part of it.
    is_joining: bool,
    /// Its growth in sectors since the last flush.
    growth: u64,
    strikes: u8,
}

/// The detected journals of a disk.
#[derive(Clone, Debug, Default)]
pub struct Journals(Vec<Journal>);

impl Journals {
    /// Returns whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether a read is in a journal.
    pub fn contain(&self, extent: Extent) -> bool {
        self.0.iter().any(|journal| journal.contains(extent))
    }

    /// Returns whether a write is to a journal, and advances the journal's head.
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

    /// Joins a journal that has reached the start of another one: the two are one journal.
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
    /// Makes a journal of a stream from `start` to `head`.
    fn new(start: u64, head: u64) -> Self {
        let (is_whole, begun_again, is_joining, growth, strikes) = (false, None, false, 0, 0);
        Self { start, end: head, head, is_whole, begun_again, is_joining, growth, strikes }
    }

    fn contains(&self, extent: Extent) -> bool {
        self.start <= extent.start().get() && extent.end().get() <= self.end
    }

    /// Returns whether a write begins near the expected position.
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

/// The state of the detector, from all queues of a disk.
#[derive(Debug, Default)]
pub struct Detector {
    flushes: u64,
    candidates: Vec<Candidate>,
    journals: Journals,
}

/// A sequential stream of writes.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    start: u64,
    head: u64,
    /// Sectors written since the last flush, and the number of that flush.
    run: u64,
    flush: u64,
    /// Sectors of the body that awaits its commit, or 0.
    body: u64,
    /// Consecutive transactions.
    commits: u32,
}

impl Detector {
    /// Returns the detected journals.
    pub fn journals(&self) -> &Journals {
        &self.journals
    }

    /// Processes a flush of the guest, with its writes since the last one in any order. Leaves
    /// `writes` empty.
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

    /// Extends a journal that was first detected behind its start and has wrapped around: the
    /// recent stream that led to the detected start, too short to be taken for a journal by itself,
    /// is its beginning.
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

    /// Adds a stream; the candidate with the fewest transactions makes room.
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
                // Two bodies in a row are not transactions.
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
