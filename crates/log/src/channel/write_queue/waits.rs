//! States in which writes wait, for tests.

use std::collections::BTreeSet;

use flowstone_image::Wait;

use super::WriteQueue;
use crate::log::Log;

impl WriteQueue {
    pub fn waits(&self, log: &Log, waits: &mut BTreeSet<Wait>) {
        #[rustfmt::skip]
        let Self {
            requests, waiting, conflicted, draft, records, being_written,
            // Memory, and the last observed state.
            shape: _, journals_apart: _, left_out: _, device: _, spare: _, recent: _, refused_at: _, conflicts_at: _,
        } = self;
        let reads = requests.iter().any(|(_, request)| request.partials_missing > 0);
        if reads || *being_written > 0 || !waiting.is_empty() && draft.is_none() {
            waits.insert(Wait::Host);
        }
        if !conflicted.is_empty() {
            waits.insert(Wait::Conflict);
        }
        if draft.is_some() {
            waits.insert(if log.is_broken() { Wait::Restart } else { Wait::Room });
        }
        if records.iter().any(|(_, record)| record.written && !record.has_ended(log)) {
            waits.insert(Wait::Commit);
        }
    }
}
