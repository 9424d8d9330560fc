//! Verifies that reads return the written data.
//!
//! Belongs to one lane. Two requests in flight never touch the same block, so the order of
//! completion does not matter and every read has exactly one right answer.

use super::map::{Content, VerifyMap};
use super::pattern::{self, Stamp};
use super::source::Kind;
use crate::Result;
use crate::driver::Slice;

/// The state of a verifying lane.
#[derive(Debug)]
pub(super) struct Checker {
    map: VerifyMap,
    first: u64,
    busy: Vec<bool>,
    seed: u64,
    discard_zeroes: bool,
    scratch: Vec<u8>,
    /// Number of blocks verified.
    pub(super) checked: u64,
}

impl Checker {
    /// Verifies the blocks of `map`, of which the first one is `first`.
    pub(super) fn new(map: VerifyMap, first: u64, seed: u64, discard_zeroes: bool) -> Self {
        let busy = vec![false; map.len() as usize];
        Checker { map, first, busy, seed, discard_zeroes, scratch: Vec::new(), checked: 0 }
    }

    /// Claims a block for a request. `false` if another request has it.
    pub(super) fn claim(&mut self, block: u64) -> bool {
        let busy = &mut self.busy[(block - self.first) as usize];
        !std::mem::replace(busy, true)
    }

    /// Returns the block's content after success of the request; fills the data of a write, and
    /// overwrites that of a read with filler, so that old bytes cannot pass for an answer.
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

    /// Processes a request that completed with OK.
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

    /// Processes a failed request; the content of a block that it should have changed becomes
    /// unknown.
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

    /// Returns the first block at or after `block` with known content.
    pub(super) fn next_known(&self, block: u64) -> Option<u64> {
        self.map.next_known(block - self.first).map(|at| self.first + at)
    }

    /// Returns the map.
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
        self.busy[(block - self.first) as usize] = false;
    }
}
