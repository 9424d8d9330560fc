//! When the next record is started, and its size: keeps the device busy, and lets small requests
//! share a record.

use flowstone_log_format::BLOCK_BYTES;

use super::WriteQueue;

/// Maximum number of small records of one queue being written at once. With fewer, the device is
/// idle at times.
const SMALL_RECORDS_MAX: usize = 3;
/// Maximum number of records of any size being written at once.
const RECORDS_MAX: usize = 16;
/// A record is started beside those in flight only if it holds at least this share of their
/// requests. Otherwise each completion of a small record would start another small record, for
/// ever.
const BESIDE_MIN_PERCENT: usize = 50;
/// Number of blocks from which on a request is large. Smaller requests share a record, as many as
/// there are, and with it the cost per record.
const LARGE_REQUEST_BLOCKS: u64 = 16;
/// Number of records that large requests are divided into: enough to keep the device busy while the
/// next one is copied and the last ones are completed.
const LARGE_RECORDS: u64 = 8;
/// Minimum number of records for the bytes that keep the device busy.
const BUSY_RECORDS: u64 = 4;

/// Returns the blocks after which a record of large requests is complete, for `outstanding` blocks
/// waiting and in flight. A larger one costs less per block, but leaves the device less to do at a
/// time.
fn large_blocks(outstanding: u64, busy_bytes: u64) -> u64 {
    let busy = busy_bytes / BLOCK_BYTES as u64 / BUSY_RECORDS;
    (outstanding / LARGE_RECORDS).max(busy).max(LARGE_REQUEST_BLOCKS)
}

/// Waiting and in-flight load, in blocks.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    waiting: u64,
    requests: u64,
    enough: u64,
}

impl Load {
    /// Returns whether this many blocks of this many requests justify a record of their own.
    pub const fn is_large(self, blocks: u64, requests: u64) -> bool {
        blocks >= self.enough && blocks >= requests * LARGE_REQUEST_BLOCKS
    }

    /// Returns whether the waiting requests make a large record.
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

    /// Returns whether another record should be started.
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
        // 5 ms for a small record, 200 MB/s: a megabyte must be in flight.
        assert_eq!(large_blocks(8 * 32, 1 << 20), 64);
        // 80 us, 2.5 GB/s.
        assert_eq!(large_blocks(8 * 32, 200 << 10), 32);
    }
}
