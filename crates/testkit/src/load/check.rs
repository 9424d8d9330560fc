//! Proves that reads return what was written.
//!
//! Belongs to one lane. Two requests never touch one block at a time, so the order in which a
//! backend completes them does not matter and every read has exactly one right answer.

use super::map::{Content, VerifyMap};
use super::pattern::{self, Stamp};
use super::source::Kind;
use crate::Result;
use crate::driver::Slice;

/// The books of a lane that verifies.
#[derive(Debug)]
pub(super) struct Checker {
    map: VerifyMap,
    first: u64,
    busy: Vec<u64>,
    seed: u64,
    discard_zeroes: bool,
    scratch: Vec<u8>,
    /// Blocks checked and found right.
    pub(super) checked: u64,
}

impl Checker {
    /// Checks blocks from `first` on, as many as `map` has.
    pub(super) fn new(map: VerifyMap, first: u64, seed: u64, discard_zeroes: bool) -> Self {
        let words = map.len().div_ceil(64) as usize;
        let busy = vec![0; words];
        Checker { map, first, busy, seed, discard_zeroes, scratch: Vec::new(), checked: 0 }
    }

    /// Takes a block for a request. False when another request has it.
    pub(super) fn claim(&mut self, block: u64) -> bool {
        let at = block - self.first;
        let (word, bit) = (at as usize / 64, 1 << (at % 64));
        let free = self.busy[word] & bit == 0;
        self.busy[word] |= bit;
        free
    }

    /// What the block will hold when the request succeeds; fills `data` of a write and scars that
    /// of a read, so that old bytes cannot pass for an answer.
    pub(super) fn prepare(&mut self, kind: Kind, block: u64, offset: u64, data: &Slice) -> Content {
        match kind {
            Kind::Write => {
                let generation = self.map.next_generation();
                self.scratch.resize(data.len(), 0);
                pattern::fill(&mut self.scratch, Stamp { offset, generation, seed: self.seed });
                data.write(0, &self.scratch);
                Content::Written(generation)
            }
            Kind::Read => {
                data.fill(0xdb);
                self.map.get(block - self.first)
            }
            Kind::Zeroes => Content::Zero,
            Kind::Discard if self.discard_zeroes => Content::Zero,
            Kind::Discard | Kind::Flush => Content::Unknown,
        }
    }

    /// A request came back with OK.
    pub(super) fn succeeded(
        &mut self,
        kind: Kind,
        block: u64,
        offset: u64,
        content: Content,
        data: &Slice,
    ) -> Result<()> {
        match kind {
            Kind::Flush => return Ok(()),
            Kind::Read => self.check(offset, content, data)?,
            Kind::Write | Kind::Discard | Kind::Zeroes => self.map.set(block - self.first, content),
        }
        self.release(block);
        Ok(())
    }

    /// A request failed; a block it should have changed may hold anything.
    pub(super) fn failed(&mut self, kind: Kind, block: u64) {
        match kind {
            Kind::Flush => return,
            Kind::Read => {}
            Kind::Write | Kind::Discard | Kind::Zeroes => {
                self.map.set(block - self.first, Content::Unknown);
            }
        }
        self.release(block);
    }

    /// The first block at or after `block` whose contents are known.
    pub(super) fn next_known(&self, block: u64) -> Option<u64> {
        self.map.next_known(block - self.first).map(|at| self.first + at)
    }

    /// Gives the map back.
    pub(super) fn into_map(self) -> VerifyMap {
        self.map
    }

    fn check(&mut self, offset: u64, content: Content, data: &Slice) -> Result<()> {
        self.scratch.resize(data.len(), 0);
        data.read(0, &mut self.scratch);
        let seed = self.seed;
        match content {
            Content::Unknown => return Ok(()),
            Content::Zero => pattern::check_zero(&self.scratch, offset)?,
            Content::Written(generation) => {
                pattern::check(&self.scratch, Stamp { offset, generation, seed })?;
            }
        }
        self.checked += 1;
        Ok(())
    }

    fn release(&mut self, block: u64) {
        let at = block - self.first;
        self.busy[at as usize / 64] &= !(1 << (at % 64));
    }
}
