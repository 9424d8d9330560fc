//! The inflight region: shared memory in which a backend records the requests that it has taken.
//!
//! The front end only keeps the file and passes it to the next backend. Tests can read the
//! split-ring records; their layout is that of the vhost-user specification:
//!
//! ```text
//! per queue: features:8 version:2 desc_num:2 last_batch_head:2 used_idx:2, then desc_num records
//! record:    inflight:1 padding:5 next:2 counter:8
//! ```

use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;

use vhost::vhost_user::message::VhostUserInflight;

use crate::{Error, Result};

const HEADER_BYTES: u64 = 16;
const RECORD_BYTES: u64 = 16;

/// An inflight region as returned by GET_INFLIGHT_FD.
pub struct InflightArea {
    pub(super) info: VhostUserInflight,
    pub(super) file: File,
}

impl fmt::Debug for InflightArea {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InflightArea").finish_non_exhaustive()
    }
}

impl InflightArea {
    /// Returns the heads marked as taken and not yet completed, in the order of taking.
    pub fn taken(&self, queue: u16) -> Result<Vec<u16>> {
        let stride = self.info.mmap_size / u64::from(self.info.num_queues);
        let start = self.info.mmap_offset + u64::from(queue) * stride + HEADER_BYTES;
        let mut taken = Vec::new();
        for head in 0..self.info.queue_size {
            let mut record = [0; RECORD_BYTES as usize];
            self.file
                .read_exact_at(&mut record, start + u64::from(head) * RECORD_BYTES)
                .map_err(|e| Error::io(format!("read inflight record {head}"), e))?;
            if record[0] != 0 {
                let counter = record[8..].try_into().expect("the record has 16 bytes");
                taken.push((u64::from_le_bytes(counter), head));
            }
        }
        taken.sort_unstable();
        Ok(taken.into_iter().map(|(_, head)| head).collect())
    }
}
