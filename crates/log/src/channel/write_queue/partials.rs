//! Partial blocks: the rest is read before they go into a record, and again if it has changed by
//! then.

use flowstone_block::{Errno, Outcome};
use flowstone_fileio::MemoryList;
use flowstone_log_format::{BLOCK_SECTORS, MapEntry};
use flowstone_log_store::Hints;

use super::WriteQueue;
use crate::channel::partial::PartialBlock;
use crate::channel::{Purpose, Queue};

/// Maximum number of reads of a block that does not match its checksum.
const TRIES_MAX: u32 = 2;

impl WriteQueue {
    /// Reads the rest of the partial blocks of a request.
    pub(super) fn fetch_partials(&mut self, queue: &mut Queue, index: usize) {
        let pending = &mut self.requests[index];
        pending.partials_missing = 0;
        for (number, slot) in pending.partials.iter_mut().enumerate() {
            let Some(partial) = slot.as_mut().filter(|partial| partial.expected.is_none()) else {
                continue;
            };
            let map_entry = queue.log.volume.map.get(partial.lba);
            if !map_entry.is_mapped() {
                partial.content.fill(0);
                partial.expected = Some(map_entry);
            } else if let Some(content) = self.recent.get(partial.lba, map_entry) {
                partial.content.copy_from_slice(content);
                partial.expected = Some(map_entry);
            } else {
                pending.partials_missing += 1;
                read_partial(queue, partial, map_entry, index * 2 + number);
            }
        }
        if pending.partials_missing == 0 {
            self.waiting.push_back(index);
        }
    }

    pub fn finish_partial(&mut self, queue: &mut Queue, tag: usize, outcome: Outcome) {
        let (index, number) = (tag / 2, tag % 2);
        let pending = &mut self.requests[index];
        let Some(partial) = &mut pending.partials[number] else { return };
        let fits = crc32c::crc32c(&partial.content) == partial.reading.checksum();
        let map_entry = queue.log.volume.map.get(partial.lba);
        let gone = map_entry == partial.reading && partial.tries >= TRIES_MAX;
        // The write covers all that the disk has of its last block: no old content is kept.
        let covered = pending.extent.end().get() == queue.log.volume.capacity().get()
            && pending.extent.start().get() <= partial.lba * BLOCK_SECTORS;
        if outcome.is_ok() && fits {
            partial.expected = Some(partial.reading);
        } else if !map_entry.is_mapped() || gone && covered {
            partial.content.fill(0);
            partial.expected = Some(map_entry);
        } else if gone {
            queue.log.report_damage(
                partial.lba,
                map_entry,
                "a part of a block is written and the rest is unreadable",
            );
            // The other partial block may still be in flight: the request ends when nothing is.
            pending.outcome = Err(outcome.err().unwrap_or(Errno::IO));
            partial.expected = Some(map_entry);
            pending.cursor = pending.end;
        } else {
            if map_entry != partial.reading {
                partial.tries = 0;
            }
            return read_partial(queue, partial, map_entry, tag);
        }
        pending.partials_missing -= 1;
        if pending.partials_missing == 0 {
            self.waiting.push_back(index);
        }
    }
}

fn read_partial(queue: &mut Queue, partial: &mut PartialBlock, map_entry: MapEntry, tag: usize) {
    partial.reading = map_entry;
    partial.tries += 1;
    // SAFETY: the partial block is boxed and stays with its request until the read completes.
    let memory = unsafe { MemoryList::new(&partial.memory) };
    queue.store.read(map_entry.address(), memory, Purpose::Partial.tag(tag), Hints::default());
}
