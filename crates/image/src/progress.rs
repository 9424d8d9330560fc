//! Progress of the recovery of an image that is being opened.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Shared between the thread that opens an image and observers: a log image that was not closed is
/// recovered, which may take long.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    read: AtomicU64,
    /// 0 until known.
    segments: AtomicU64,
}

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
}
