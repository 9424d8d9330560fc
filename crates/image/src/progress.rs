//! How far an image has been read that is being opened.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Who opens an image has it, and others look at it meanwhile: a log image that was not closed is
/// recovered, which may take long.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    read: AtomicU64,
    /// 0 until it is known.
    segments: AtomicU64,
}

impl Progress {
    /// So many segments are to be read.
    pub(crate) fn begin(&self, segments: u64) {
        self.0.segments.store(segments, Ordering::Relaxed);
    }

    /// So many more have been read.
    pub(crate) fn add(&self, segments: u64) {
        self.0.read.fetch_add(segments, Ordering::Relaxed);
    }

    /// How many segments have been read, and how many there are to be read; nothing before that is
    /// known, and of images that are not recovered.
    pub fn segments(&self) -> Option<(u64, u64)> {
        let segments = self.0.segments.load(Ordering::Relaxed);
        (segments > 0).then(|| (self.0.read.load(Ordering::Relaxed), segments))
    }
}
