//! When another record is made, and how large: the device is to have enough to do, and small
//! requests are to share a record.

use super::WriteQueue;
use crate::log::address::BLOCK_BYTES;

/// Small records of one queue that are being written at once. With fewer, the device is idle at
/// times.
const SMALL_RECORDS_MAX: usize = 3;
/// Records of any size.
const RECORDS_MAX: usize = 16;
/// Another record is started beside those on their way only for at least this share of what they
/// carry. Else every completion of a small record would be answered by a small record, for ever.
const BESIDE_MIN_PERCENT: usize = 50;
/// Requests of so many blocks are large. Of smaller ones, as many as there are share a record: what
/// a record costs besides its blocks is then theirs together.
const LARGE_REQUEST_BLOCKS: u64 = 16;
/// Records that large requests are divided into: enough that the device always has some while the
/// next one is copied and the last ones are completed.
const LARGE_RECORDS: u64 = 8;
/// What the device must have on its way to be busy is divided into so many records at least.
const BUSY_RECORDS: u64 = 4;

/// Blocks after which a record of large requests is large enough, when so many wait and are on
/// their way. A larger one costs less for each block, but the device has less to do at a time.
fn large_blocks(outstanding: u64, busy_bytes: u64) -> u64 {
    let busy = busy_bytes / BLOCK_BYTES as u64 / BUSY_RECORDS;
    (outstanding / LARGE_RECORDS).max(busy).max(LARGE_REQUEST_BLOCKS)
}

/// What waits for a record, and what is on its way, in blocks.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    waiting: u64,
    requests: u64,
    enough: u64,
}

impl Load {
    /// Whether so many blocks of so many requests are a record of their own.
    pub const fn is_large(self, blocks: u64, requests: u64) -> bool {
        blocks >= self.enough && blocks >= requests * LARGE_REQUEST_BLOCKS
    }

    /// Whether a large record can be made of what waits.
    pub const fn waits_enough(self) -> bool {
        self.is_large(self.waiting, self.requests)
    }
}

impl WriteQueue {
    pub(super) fn load(&self) -> Load {
        let waiting = self.waiting.iter().map(|index| &self.requests[*index]);
        let waiting = waiting.map(|pending| pending.end - pending.cursor).sum();
        let under_way = self.records.iter().filter(|(_, record)| !record.written);
        let under_way: u64 = under_way.map(|(_, record)| u64::from(record.content.payload())).sum();
        let enough = large_blocks(waiting + under_way, self.device.busy_bytes());
        let most = u64::from(self.shape.record_payload_max());
        Load { waiting, requests: self.waiting.len() as u64, enough: enough.min(most) }
    }

    /// Whether it is time for another record.
    pub(super) fn may_begin(&self) -> bool {
        if self.being_written == 0 {
            return true;
        }
        if self.being_written >= RECORDS_MAX {
            return false;
        }
        let under_way = self.records.iter().filter(|(_, record)| !record.written);
        let requests: usize = under_way.map(|(_, record)| record.shares.len()).sum();
        let is_worth_it = self.waiting.len() * 100 >= requests * BESIDE_MIN_PERCENT;
        self.being_written < SMALL_RECORDS_MAX && is_worth_it || self.load().waits_enough()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deep_loads_of_large_requests_become_few_large_records() {
        // 8 and 32 requests of 128 KiB, 8 of 1 MiB.
        assert_eq!(large_blocks(8 * 32, 0), 32);
        assert_eq!(large_blocks(32 * 32, 0), 128);
        assert_eq!(large_blocks(8 * 256, 0), 256);
    }

    #[test]
    fn a_device_that_takes_long_gets_larger_records() {
        // 5 ms for a small record, 200 MB/s: a megabyte must be on its way.
        assert_eq!(large_blocks(8 * 32, 1 << 20), 64);
        // 80 us, 2.5 GB/s.
        assert_eq!(large_blocks(8 * 32, 200 << 10), 32);
    }
}
