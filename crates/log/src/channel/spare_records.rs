//! Records of a queue for reuse.
//!
//! Large ones lie in huge pages, which a device takes in few pieces
//! (docs/decisions/transfers-from-huge-pages.md). Small ones would only occupy more of the host's
//! memory there.

use flowstone_block::Slab;
use flowstone_log_format::{RecordBuilder, Shape};

use super::pending_record::PendingRecord;

/// Blocks from which a record is large.
const LARGE_BLOCKS: u64 = 32;
/// Records in huge pages: these take 8 MiB. Further ones lie in other memory.
const LARGE_MOST: usize = 15;

/// See the module.
#[expect(clippy::vec_box, reason = "records travel in their boxes")]
pub struct SpareRecords {
    shape: Shape,
    small: Vec<Box<PendingRecord>>,
    large: Vec<Box<PendingRecord>>,
    slab: Option<Slab>,
    made_large: usize,
}

impl SpareRecords {
    pub const fn new(shape: Shape) -> Self {
        Self { shape, small: Vec::new(), large: Vec::new(), slab: None, made_large: 0 }
    }

    /// Returns an empty record, for about `blocks` blocks.
    pub fn take(&mut self, blocks: u64) -> Box<PendingRecord> {
        let large = if blocks >= LARGE_BLOCKS { self.take_large() } else { None };
        let record = large.or_else(|| self.small.pop());
        let mut record = record.unwrap_or_else(|| {
            PendingRecord::new(RecordBuilder::new(self.shape.record_payload_max()), false)
        });
        record.clear();
        record
    }

    fn take_large(&mut self) -> Option<Box<PendingRecord>> {
        if let Some(record) = self.large.pop() {
            return Some(record);
        }
        let payload = self.shape.record_payload_max();
        let bytes = RecordBuilder::buffer_bytes(payload);
        if self.slab.is_none() {
            self.slab = Slab::new(LARGE_MOST * bytes).ok();
        }
        let made = self.made_large;
        let buffer = self.slab.as_mut().filter(|_| made < LARGE_MOST)?.cut(bytes)?;
        self.made_large += 1;
        Some(PendingRecord::new(RecordBuilder::in_buffer(buffer, payload), true))
    }

    pub fn give_back(&mut self, record: Box<PendingRecord>) {
        if record.is_large { self.large.push(record) } else { self.small.push(record) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_records_have_an_end_and_each_goes_back_to_its_like() {
        let shape = Shape { segment_blocks: 1024, reserve_percent: 20, streams: 1 };
        let mut spare = SpareRecords::new(shape);
        let taken: Vec<_> = (0..LARGE_MOST + 3).map(|_| spare.take(LARGE_BLOCKS)).collect();
        assert_eq!(taken.iter().filter(|record| record.is_large).count(), LARGE_MOST);
        taken.into_iter().for_each(|record| spare.give_back(record));
        assert_eq!((spare.large.len(), spare.small.len()), (LARGE_MOST, 3));
        assert!(!spare.take(LARGE_BLOCKS - 1).is_large && spare.take(LARGE_BLOCKS).is_large);
    }
}
