//! State of a drive, and the effect of requests on it.

use std::ops::Range;
use std::sync::Arc;

use flowstone_fileio::FileOffset;

use crate::contents::{BLOCK_BYTES, Contents};
use crate::ftl::{Ftl, LABELS};
use crate::options::{SsdOptions, TrimMode};
use crate::time::ModelTime;
use crate::timing::{DieWork, Work};

/// Returns the label of a block of 4 KiB of a write: from the block's number within the write, the
/// write's offset in its file, and all its bytes. Labels are below [`LABELS`].
pub type Labeller = fn(usize, FileOffset, &[u8]) -> u8;

/// State of a drive.
pub struct State {
    pub options: SsdOptions,
    time: Arc<ModelTime>,
    /// Blocks of 4 KiB visible to the host.
    pub blocks: u32,
    pub ftl: Ftl,
    contents: Contents,
    /// Bitmap of the blocks that belong to a file.
    in_use: Vec<u64>,
    pub work: Work,
    pub host_bytes: u64,
    pub labeller: Option<Labeller>,
    pub host_bytes_of: [u64; LABELS],
    pub punches: u64,
    pub punched_bytes: u64,
    /// Bytes written since the last TRIM of all free space.
    since_trim: u64,
    /// First block that no file has been given.
    pub free_from: u32,
}

/// The part of a range in one block.
struct Piece {
    block: u32,
    /// Range within the block.
    within: Range<usize>,
    /// Offset within the range.
    at: usize,
}

/// Splits a range of bytes into its parts by block.
fn pieces(range: Range<u64>) -> impl Iterator<Item = Piece> {
    let block = BLOCK_BYTES as u64;
    (range.start / block..range.end.div_ceil(block)).map(move |number| {
        let first = (number * block).max(range.start);
        let end = ((number + 1) * block).min(range.end);
        let within = (first - number * block) as usize..(end - number * block) as usize;
        Piece { block: number as u32, within, at: (first - range.start) as usize }
    })
}

impl State {
    pub fn new(
        options: SsdOptions,
        time: Arc<ModelTime>,
        ftl: Ftl,
        blocks: u32,
        free_from: u32,
    ) -> Self {
        Self {
            options,
            time,
            blocks,
            ftl,
            contents: Contents::new(blocks),
            in_use: vec![0; (blocks as usize).div_ceil(64)],
            work: Work::new(&options.timing),
            host_bytes: 0,
            labeller: None,
            host_bytes_of: [0; LABELS],
            punches: 0,
            punched_bytes: 0,
            since_trim: 0,
            free_from,
        }
    }

    /// Writes bytes at any offset, `offset` in their file. Returns when that completes.
    pub fn write(&mut self, first: u64, bytes: &[u8], stream: u8, offset: FileOffset) -> u64 {
        let end = first + bytes.len() as u64;
        for Piece { block, within, at } in pieces(first..end) {
            self.put(block, &within, &bytes[at..at + within.len()]);
            self.set_in_use(block, true);
        }
        self.host_bytes += bytes.len() as u64;
        if let Some(labeller) = self.labeller {
            self.label(first, bytes, |block| labeller(block, offset, bytes));
        }
        let erased = self.ftl.counts().erased;
        for unit in self.units(first, end) {
            self.ftl.write(unit, stream);
        }
        let done = self.program(bytes.len() as u64, self.ftl.counts().erased - erased);
        self.since_trim += bytes.len() as u64;
        if let TrimMode::Batch(every) = self.options.trim
            && self.since_trim >= every
        {
            self.since_trim = 0;
            self.trim_all_free();
        }
        done
    }

    /// Labels the blocks of a write. A mapping unit has the label of its last one.
    fn label(&mut self, first: u64, bytes: &[u8], label: impl Fn(usize) -> u8) {
        for (number, block) in bytes.chunks(BLOCK_BYTES).enumerate() {
            let at = first + (number * BLOCK_BYTES) as u64;
            let label = label(number);
            self.host_bytes_of[usize::from(label)] += block.len() as u64;
            let units = self.units(at, at + block.len() as u64);
            units.for_each(|unit| self.ftl.label(unit, label));
        }
    }

    const fn units(&self, first: u64, end: u64) -> Range<u32> {
        let unit = self.options.unit_bytes;
        (first / unit) as u32..end.div_ceil(unit) as u32
    }

    /// Takes on a write of some bytes, and what the flash has done for it. Returns when that
    /// completes.
    fn program(&mut self, bytes: u64, erased: u64) -> u64 {
        let (timing, unit) = (&self.options.timing, self.options.unit_bytes);
        let (program, transfer) = (timing.program_ns(unit), timing.transfer_ns(unit));
        let erase = erased * timing.erase.as_nanos() as u64;
        let of_dies = self.ftl.take_programs().enumerate().map(|(die, done)| DieWork {
            die,
            program: u64::from(done.written + done.copied) * program + erase,
            // A copy goes from a die to the controller, and back.
            transfers: u64::from(done.written + 2 * done.copied),
            transfer,
        });
        let works = |work: &DieWork| timing.dies == 1 || work.program > 0;
        self.work.take_on(self.time.passed(), timing.command_ns(bytes), of_dies.filter(works))
    }

    /// Reads into `target`. Returns when that completes.
    pub fn read(&mut self, first: u64, target: &mut [u8]) -> u64 {
        for Piece { block, within, at } in pieces(first..first + target.len() as u64) {
            let target = &mut target[at..at + within.len()];
            if within.len() == BLOCK_BYTES {
                self.contents.read(block, target);
            } else {
                target.copy_from_slice(&self.whole(block)[within]);
            }
        }
        let (link, end) =
            (self.options.timing.command_ns(target.len() as u64), first + target.len() as u64);
        let transfer = self.options.timing.transfer_ns(self.options.unit_bytes);
        let of_dies = self.units(first, end).map(|unit| {
            let die = self.ftl.die_of(unit);
            DieWork { die, program: 0, transfers: 1, transfer }
        });
        self.work.take_on(self.time.passed(), link, of_dies)
    }

    /// Executes a command without data. Returns when that completes.
    pub fn command(&mut self) -> u64 {
        let link = self.options.timing.command_ns(0);
        self.work.take_on_last(self.time.passed(), link)
    }

    /// Zeroes a range; its blocks stay allocated.
    pub fn clear(&mut self, range: Range<u64>) {
        for Piece { block, within, .. } in pieces(range) {
            self.put(block, &within, &[0; BLOCK_BYTES][..within.len()]);
        }
    }

    /// Writes part of a block.
    fn put(&mut self, block: u32, within: &Range<usize>, content: &[u8]) {
        if within.len() == BLOCK_BYTES {
            return self.contents.write(block, content);
        }
        let mut whole = self.whole(block);
        whole[within.clone()].copy_from_slice(content);
        self.contents.write(block, &whole);
    }

    fn whole(&self, block: u32) -> [u8; BLOCK_BYTES] {
        let mut whole = [0; BLOCK_BYTES];
        self.contents.read(block, &mut whole);
        whole
    }

    /// Punches a range: its whole blocks no longer belong to a file. Returns when that completes.
    pub fn punch(&mut self, range: Range<u64>) -> u64 {
        let block = BLOCK_BYTES as u64;
        self.clear(range.clone());
        let blocks = range.start.div_ceil(block) as u32..(range.end / block) as u32;
        let held = blocks.clone().filter(|block| self.is_in_use(*block)).count() as u64;
        if held == 0 {
            return self.time.passed();
        }
        blocks.clone().for_each(|block| self.set_in_use(block, false));
        self.punches += 1;
        self.punched_bytes += held * block;
        if self.options.trim != TrimMode::On {
            return self.time.passed();
        }
        self.trim(blocks)
    }

    /// Trims free blocks: only units of which all blocks are free.
    fn trim(&mut self, blocks: Range<u32>) -> u64 {
        let unit_blocks = (self.options.unit_bytes / BLOCK_BYTES as u64) as u32;
        for unit in blocks.start / unit_blocks..blocks.end.div_ceil(unit_blocks) {
            let mut of_unit = unit * unit_blocks..(unit + 1) * unit_blocks;
            if of_unit.all(|block| !self.is_in_use(block)) {
                self.ftl.trim(unit);
            }
        }
        let timing = &self.options.timing;
        let link = timing.command_ns(0) + timing.trim.as_nanos() as u64;
        self.work.take_on_last(self.time.passed(), link)
    }

    /// Trims each free range of the whole drive.
    fn trim_all_free(&mut self) {
        let mut at = 0;
        while at < self.blocks {
            let end = (at..self.blocks).find(|block| self.is_in_use(*block));
            let end = end.unwrap_or(self.blocks);
            if end > at {
                self.trim(at..end);
            }
            at = (end..self.blocks).find(|block| !self.is_in_use(*block)).unwrap_or(self.blocks);
        }
    }

    /// Allocates the blocks of a range.
    pub fn allocate(&mut self, blocks: Range<u32>) {
        blocks.for_each(|block| self.set_in_use(block, true));
    }

    pub fn is_in_use(&self, block: u32) -> bool {
        self.in_use[block as usize / 64] >> (block % 64) & 1 != 0
    }

    fn set_in_use(&mut self, block: u32, is_so: bool) {
        let word = &mut self.in_use[block as usize / 64];
        let bit = 1 << (block % 64);
        if is_so { *word |= bit } else { *word &= !bit }
    }
}
