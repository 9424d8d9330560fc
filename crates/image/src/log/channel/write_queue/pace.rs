//! When another record is made, and how large: the device is to have enough to do, and small requests are to
//! share a record.

use super::WriteQueue;

/// Small records of one queue that are being written at once. With fewer, the device is idle at times.
const SMALL_RECORDS_MAX: usize = 3;
/// Records of any size.
const RECORDS_MAX: usize = 16;
/// Another record is started beside those on their way only for at least this share of what they
/// carry. Else every completion of a small record would be answered by a small record, for ever.
const BESIDE_MIN_PERCENT: usize = 50;
/// A record of so many blocks is large enough if its requests are large: a larger one costs no less for each of
/// them, and one record in place of several leaves the device with less to do at a time. The next one is
/// made while it is written.
const LARGE_BLOCKS: u64 = 64;
/// Requests of so many blocks are large. Of smaller ones, as many as there are share a record: what a record
/// costs besides its blocks is then theirs together.
const LARGE_REQUEST_BLOCKS: u64 = 16;

/// Whether so many blocks of so many requests are a record of their own.
pub fn is_large(blocks: u64, requests: usize) -> bool {
    blocks >= LARGE_BLOCKS && blocks >= requests as u64 * LARGE_REQUEST_BLOCKS
}

impl WriteQueue {
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
        self.being_written < SMALL_RECORDS_MAX && is_worth_it || self.waits_enough()
    }

    /// Whether a large record can be made of what waits.
    pub(super) fn waits_enough(&self) -> bool {
        let mut blocks = 0;
        (1..).zip(&self.waiting).any(|(requests, index)| {
            let pending = &self.requests[*index];
            blocks += pending.end - pending.cursor;
            is_large(blocks, requests)
        })
    }
}
