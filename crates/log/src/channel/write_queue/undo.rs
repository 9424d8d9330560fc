//! Undoes drafts that get no place.

use flowstone_block::Errno;

use super::WriteQueue;
use crate::channel::Queue;
use crate::channel::pending_record::{PendingRecord, Share};

impl WriteQueue {
    /// Undoes a draft: its requests wait again, in order, except those with block `stale`, which
    /// has changed since it was read. These are returned.
    pub(super) fn take_apart(
        &mut self,
        mut record: Box<PendingRecord>,
        stale: Option<u64>,
    ) -> Vec<usize> {
        let mut again = Vec::new();
        while let Some(Share { write, first }) = record.shares.pop() {
            let pending = &mut self.requests[write];
            pending.cursor = first;
            pending.shares_left -= 1;
            // A part of the request is in the draft, and the rest waits.
            self.waiting.retain(|waiting| *waiting != write);
            let partials = pending.partials.iter_mut().flatten();
            match partials.into_iter().find(|partial| Some(partial.lba) == stale) {
                Some(partial) => {
                    partial.expected = None;
                    partial.tries = 0;
                    again.push(write);
                }
                None => self.waiting.push_front(write),
            }
        }
        self.spare.give_back(record);
        again
    }

    /// Refuses a draft for lack of room: requests that need room fail; requests that free some go
    /// on.
    pub(super) fn refuse(&mut self, queue: &mut Queue, record: Box<PendingRecord>, errno: Errno) {
        let shares: Vec<usize> = record.shares.iter().map(|share| share.write).collect();
        let only_trims = record.only_trims();
        self.take_apart(record, None);
        for index in shares {
            let pending = &mut self.requests[index];
            if only_trims || pending.brings_data() {
                pending.outcome = Err(errno);
                pending.cursor = pending.end;
                self.finish_if_done(queue, index);
            }
        }
    }
}
