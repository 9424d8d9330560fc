//! The reference disk: the expected answers of a disk, kept as simply as possible.
//!
//! Blocks that were never written take no memory and read as zeroes. The content of a discarded
//! range is up to the device unless the test says otherwise, so the model can also hold "unknown",
//! and `check` compares only known bytes. It does no I/O, and has no sectors or queues.

use std::collections::BTreeMap;
use std::fmt;

#[cfg(test)]
mod tests;

const BLOCK: usize = 4096;

/// The content of a discarded range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiscardRule {
    /// Zeroes.
    Zeroes,
    /// Unknown until it is written again.
    Anything,
}

/// A byte range beyond the end of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfRange;

/// The first byte that differs from the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Its offset on the disk.
    pub offset: u64,
    /// The byte in the model.
    pub expected: u8,
    /// The byte that was read.
    pub found: u8,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference { offset, expected, found } = self;
        write!(f, "byte {offset:#x}: expected {expected:#04x}, found {found:#04x}")
    }
}

impl std::error::Error for Difference {}

/// A sparse disk in memory.
#[derive(Clone, Debug)]
pub struct Model {
    bytes: u64,
    rule: DiscardRule,
    blocks: BTreeMap<u64, Block>,
}

#[derive(Clone, Debug)]
struct Block {
    data: Box<[u8; BLOCK]>,
    known: Box<[bool; BLOCK]>,
}

impl Default for Block {
    fn default() -> Self {
        Block { data: Box::new([0; BLOCK]), known: Box::new([true; BLOCK]) }
    }
}

impl Model {
    /// Makes a zeroed disk whose discarded ranges read as zeroes.
    pub fn new(bytes: u64) -> Self {
        Self::with_rule(bytes, DiscardRule::Zeroes)
    }

    /// Makes a zeroed disk.
    pub fn with_rule(bytes: u64, rule: DiscardRule) -> Self {
        Model { bytes, rule, blocks: BTreeMap::new() }
    }

    /// Returns the size of the disk.
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// Returns whether the size is 0.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Changes the size. New space reads as zeroes, removed space is forgotten.
    pub fn resize(&mut self, bytes: u64) {
        if bytes < self.bytes {
            self.zero_range(bytes, self.bytes - bytes);
        }
        self.bytes = bytes;
    }

    /// Reads a range; unknown bytes read as zero.
    pub fn read(&self, offset: u64, target: &mut [u8]) -> Result<(), OutOfRange> {
        self.range(offset, target.len() as u64)?;
        for (block, start, piece) in pieces(offset, target.len() as u64) {
            let at = (block * BLOCK as u64 + start as u64 - offset) as usize;
            let target = &mut target[at..at + piece];
            match self.blocks.get(&block) {
                Some(found) => target.copy_from_slice(&found.data[start..start + piece]),
                None => target.fill(0),
            }
        }
        Ok(())
    }

    /// Writes a range.
    pub fn write(&mut self, offset: u64, source: &[u8]) -> Result<(), OutOfRange> {
        self.range(offset, source.len() as u64)?;
        for (block, start, piece) in pieces(offset, source.len() as u64) {
            let at = (block * BLOCK as u64 + start as u64 - offset) as usize;
            let target = self.blocks.entry(block).or_default();
            target.data[start..start + piece].copy_from_slice(&source[at..at + piece]);
            target.known[start..start + piece].fill(true);
        }
        Ok(())
    }

    /// Zeroes a range.
    pub fn zero(&mut self, offset: u64, bytes: u64) -> Result<(), OutOfRange> {
        self.range(offset, bytes)?;
        self.zero_range(offset, bytes);
        Ok(())
    }

    /// Discards a range.
    pub fn discard(&mut self, offset: u64, bytes: u64) -> Result<(), OutOfRange> {
        match self.rule {
            DiscardRule::Zeroes => self.zero(offset, bytes),
            DiscardRule::Anything => self.forget(offset, bytes),
        }
    }

    /// Makes the content of a range unknown, as after a write that failed half-way.
    pub fn forget(&mut self, offset: u64, bytes: u64) -> Result<(), OutOfRange> {
        self.range(offset, bytes)?;
        for (block, start, piece) in pieces(offset, bytes) {
            let target = self.blocks.entry(block).or_default();
            target.known[start..start + piece].fill(false);
        }
        Ok(())
    }

    /// Compares data read from a disk with the expected data; unknown bytes always match.
    pub fn check(&self, offset: u64, found: &[u8]) -> Result<(), Difference> {
        for (at, &found) in found.iter().enumerate() {
            let offset = offset + at as u64;
            match self.expected(offset) {
                Some(expected) if expected != found => {
                    return Err(Difference { offset, expected, found });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the byte at `offset`, or `None` if it is unknown.
    pub fn expected(&self, offset: u64) -> Option<u8> {
        let (block, start) = (offset / BLOCK as u64, (offset % BLOCK as u64) as usize);
        match self.blocks.get(&block) {
            Some(found) => found.known[start].then(|| found.data[start]),
            None => Some(0),
        }
    }

    fn range(&self, offset: u64, bytes: u64) -> Result<(), OutOfRange> {
        let end = offset.checked_add(bytes).ok_or(OutOfRange)?;
        if end <= self.bytes { Ok(()) } else { Err(OutOfRange) }
    }

    fn zero_range(&mut self, offset: u64, bytes: u64) {
        let first = offset / BLOCK as u64;
        let end = (offset + bytes).div_ceil(BLOCK as u64);
        let touched: Vec<u64> = self.blocks.range(first..end).map(|(&block, _)| block).collect();
        for block in touched {
            let base = block * BLOCK as u64;
            let start = offset.saturating_sub(base) as usize;
            let stop = (offset + bytes - base).min(BLOCK as u64) as usize;
            self.zero_piece(block, start, stop);
        }
    }

    fn zero_piece(&mut self, block: u64, start: usize, stop: usize) {
        if start == 0 && stop == BLOCK {
            self.blocks.remove(&block);
            return;
        }
        let target = self.blocks.entry(block).or_default();
        target.data[start..stop].fill(0);
        target.known[start..stop].fill(true);
    }
}

/// Splits a range at block boundaries: (block, first byte in it, bytes).
fn pieces(offset: u64, bytes: u64) -> impl Iterator<Item = (u64, usize, usize)> {
    let end = offset + bytes;
    let mut at = offset;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let (block, start) = (at / BLOCK as u64, (at % BLOCK as u64) as usize);
        let piece = (BLOCK - start).min((end - at) as usize);
        at += piece as u64;
        Some((block, start, piece))
    })
}
