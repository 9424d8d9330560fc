//! Progress of an image that is being opened, and whether it may still be given up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use flowstone_block::{Error, Result};

/// Shared between the thread that opens an image and observers: a log image that was not closed is
/// recovered, which may take long. As long as the file is only read, an observer may give the image
/// up: a process that ends does not wait for it.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    read: AtomicU64,
    /// 0 until known.
    segments: AtomicU64,
    /// One of the three below.
    stage: AtomicU8,
}

const READING: u8 = 0;
const WRITING: u8 = 1;
const GIVEN_UP: u8 = 2;

impl Progress {
    /// Sets the number of segments to read.
    pub fn begin(&self, segments: u64) {
        self.0.segments.store(segments, Ordering::Relaxed);
    }

    /// Adds segments that have been read.
    pub fn add(&self, segments: u64) {
        self.0.read.fetch_add(segments, Ordering::Relaxed);
    }

    /// Returns the segments read and the segments to read; `None` before the number is known, and
    /// for images that are not recovered.
    pub fn segments(&self) -> Option<(u64, u64)> {
        let segments = self.0.segments.load(Ordering::Relaxed);
        (segments > 0).then(|| (self.0.read.load(Ordering::Relaxed), segments))
    }

    /// Must be called before the file is marked as in use; an error if the image was given up. From
    /// then on the end of the process waits until the image is closed.
    pub fn begin_writing(&self, name: &str) -> Result<()> {
        match self.leave_reading(WRITING) {
            GIVEN_UP => Err(Error::busy(name, "the daemon is stopping", "open it again")),
            _ => Ok(()),
        }
    }

    /// Gives the image up. Returns `false` if it is too late: the image is to be closed in order.
    pub fn give_up(&self) -> bool {
        self.leave_reading(GIVEN_UP) != WRITING
    }

    /// Goes from reading to another stage, and returns the stage before.
    fn leave_reading(&self, to: u8) -> u8 {
        let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
        let left = self.0.stage.compare_exchange(READING, to, set, fetch);
        left.unwrap_or_else(|stage| stage)
    }
}
