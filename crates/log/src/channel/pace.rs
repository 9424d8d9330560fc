//! When the next record is started, and its size: keeps the device busy, and lets small requests
//! share a record. Pure: numbers in, numbers out.

use flowstone_log_format::BLOCK_BYTES;

/// Maximum number of small records of one queue being written at once. With fewer, the device is
/// idle at times.
const SMALL_RECORDS_MAX: usize = 3;
/// Maximum number of records of any size being written at once.
const RECORDS_MAX: usize = 16;
/// A record is started beside those in flight only if it holds at least this share of their
/// requests. Otherwise each completion of a small record would start another small record, for
/// ever.
const BESIDE_MIN_PERCENT: u64 = 50;
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

/// An amount of work of guests.
#[derive(Clone, Copy, Debug, Default)]
pub struct Amount {
    pub blocks: u64,
    pub requests: u64,
}

/// Waiting and in-flight load of a queue.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    waiting: Amount,
    in_flight: Amount,
    /// Number of records being written.
    records: usize,
    /// Blocks that justify a record of their own.
    enough: u64,
}

impl Load {
    /// The load of a queue with so many `records` being written, to a device that `busy_bytes` keep
    /// busy. A record holds at most `record_blocks` blocks.
    pub fn new(
        waiting: Amount,
        in_flight: Amount,
        records: usize,
        busy_bytes: u64,
        record_blocks: u32,
    ) -> Self {
        let enough = large_blocks(waiting.blocks + in_flight.blocks, busy_bytes);
        Self { waiting, in_flight, records, enough: enough.min(record_blocks.into()) }
    }

    /// Returns whether this work justifies a record of its own.
    pub const fn is_large(self, Amount { blocks, requests }: Amount) -> bool {
        blocks >= self.enough && blocks >= requests * LARGE_REQUEST_BLOCKS
    }

    /// Returns whether the waiting requests make a large record.
    pub const fn waits_enough(self) -> bool {
        self.is_large(self.waiting)
    }

    /// Returns whether another record should be started.
    pub const fn may_begin(self) -> bool {
        let is_worth_it =
            self.waiting.requests * 100 >= self.in_flight.requests * BESIDE_MIN_PERCENT;
        match self.records {
            0 => true,
            RECORDS_MAX.. => false,
            records => records < SMALL_RECORDS_MAX && is_worth_it || self.waits_enough(),
        }
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
