//! Moving metadata, known from the journal of its file system: a journal lists the address of each
//! block before the block is written there, and revokes it before a file can get the space. So the
//! journal's writes are read on submission.
//!
//! A queue that writes to a journal waits for others that do; lookups in the list wait for none. An
//! unreadable write clears the whole list: it may have revoked blocks, and unlisted blocks count as
//! data.

mod blocks;
pub mod jbd2;
pub mod journal;
mod records;
mod told;
mod xfs;

use std::sync::Mutex;

use flowstone_block::{Extent, Request, SECTOR_BYTES, lock};

use self::blocks::{Block, Blocks};
use self::journal::{Journal, Kind};
use self::records::Records;
use self::told::Told;

/// The largest write to a journal that is read.
const WRITE_BYTES_MAX: u64 = 2 << 20;
/// The most blocks that one write lists or revokes.
const CHANGES_MAX: u32 = 8192;
/// Capacity kept of a buffer that was larger once.
const BUFFER_BYTES_KEPT: usize = 256 << 10;

/// The metadata that the journals of a disk have listed.
#[derive(Default)]
pub struct List {
    blocks: Blocks,
    reader: Mutex<Reader>,
}

/// The state of reading the journals.
#[derive(Default)]
struct Reader {
    /// States of journals that have been written, by their number.
    states: Vec<(u16, State)>,
    records: Records,
    /// Buffer of the write being read.
    write: Vec<u8>,
}

#[derive(Clone, Copy, Default)]
struct State {
    /// The format in the journal superblock that the guest has written last.
    written: Option<jbd2::Format>,
    /// The sequence number of the newest record.
    sequence: u64,
}

impl List {
    /// Returns whether all of `extent` is listed.
    pub fn contains(&self, extent: Extent) -> bool {
        self.blocks.contain(extent)
    }

    /// Returns whether the guest has written the format of this journal.
    pub fn knows_format_of(&self, number: u16) -> bool {
        let reader = lock(&self.reader);
        reader.states.iter().any(|(it, state)| *it == number && state.written.is_some())
    }

    /// Reads a guest's write to the journal of this number.
    pub fn journal_is_written(&self, journal: (u16, &Journal), request: &Request) {
        let Some(extent) = request.op.extent() else { return };
        let mut reader = lock(&self.reader);
        let is_small = extent.bytes() <= WRITE_BYTES_MAX;
        if is_small && let Ok(bytes) = usize::try_from(extent.bytes()) {
            reader.write.resize(bytes, 0);
            // Read from a copy, which the guest cannot change meanwhile.
            request.copy_out(0, &mut reader.write);
        }
        let start = extent.start().get();
        if !is_small || reader.read(&self.blocks, journal, start).is_none() {
            self.forget(&mut reader);
        }
        if reader.write.capacity() > BUFFER_BYTES_KEPT {
            reader.write = Vec::new();
        }
    }

    /// Clears the list after an unreadable write to a journal.
    pub fn journal_is_unreadable(&self) {
        self.forget(&mut lock(&self.reader));
    }

    fn forget(&self, reader: &mut Reader) {
        self.blocks.forget();
        reader.records.forget();
        reader.states.iter_mut().for_each(|(_, state)| state.sequence = 0);
    }
}

impl Reader {
    /// Reads `write`, which begins at sector `start` of the disk.
    fn read(
        &mut self,
        blocks: &Blocks,
        (number, journal): (u16, &Journal),
        start: u64,
    ) -> Option<()> {
        let known = self.states.iter().position(|(it, _)| *it == number);
        let index = known.unwrap_or_else(|| {
            self.states.push((number, State::default()));
            self.states.len() - 1
        });
        let state = &mut self.states[index].1;
        let mut changes = Changes { blocks, journal, left: CHANGES_MAX };
        match journal.kind {
            Kind::Jbd2(format) => {
                let tell = &mut |told| changes.make(told, false);
                jbd2::read(&mut state.written, format, journal.block_bytes, &self.write, tell)
            }
            Kind::Xfs { group_blocks } => {
                let geometry = xfs::Geometry { block_bytes: journal.block_bytes, group_blocks };
                self.records.read((number, journal), start, &mut self.write, |record| {
                    let sequence = xfs::sequence(record);
                    // Another queue has written a newer record: blocks that that has revoked must
                    // not be listed by this one.
                    let is_late = sequence < state.sequence;
                    state.sequence = state.sequence.max(sequence);
                    xfs::read(record, geometry, &mut |told| changes.make(told, is_late))
                })
            }
        }
    }
}

/// The changes to the list by one write to a journal.
struct Changes<'a> {
    blocks: &'a Blocks,
    journal: &'a Journal,
    left: u32,
}

impl Changes<'_> {
    fn make(&mut self, told: Told, is_late: bool) -> Option<()> {
        let (range, change): (_, fn(&Blocks, Block)) = match told {
            Told::Empty => return None,
            Told::Lists(range) if !is_late => (range, Blocks::add),
            Told::Lists(range) | Told::Mentions(range) => (range, Blocks::mention),
            // Only the log of XFS mentions blocks.
            Told::TakesBack(range) if matches!(self.journal.kind, Kind::Jbd2(_)) => {
                (range, Blocks::remove)
            }
            Told::TakesBack(range) => (range, Blocks::take_back),
        };
        let (volume, block_bytes) = (&self.journal.volume, self.journal.block_bytes);
        if range.end > volume.bytes() {
            return None;
        }
        let order = (block_bytes / SECTOR_BYTES).checked_ilog2()?;
        // Headers of allocation groups are smaller than blocks, and at fixed places.
        let first = range.start.next_multiple_of(block_bytes);
        for start in (first..range.end).step_by(usize::try_from(block_bytes).ok()?) {
            self.left = self.left.checked_sub(1)?;
            let mut place = None;
            volume.on_disk(start..start + block_bytes, |it| {
                place = (it.end - it.start == block_bytes).then_some(it.start);
            });
            if let Some(start) = place.filter(|_| start + block_bytes <= range.end)
                && start.is_multiple_of(SECTOR_BYTES)
            {
                change(self.blocks, Block { sector: start / SECTOR_BYTES, order });
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests;
