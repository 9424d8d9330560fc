//! The copy of a file: complete, and of one stamp of the file.

use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use crate::kernel::Backing;
use crate::lock::lock;
use crate::shelf::Name;
use crate::stamp::{Attributes, Identity, Stamp};
use crate::store::space_of;

/// An answer of the source about a file.
#[derive(Clone, Copy)]
pub struct Look {
    /// The time of the answer.
    pub when: Instant,
    /// The answer.
    pub seen: Attributes,
    /// The number of changes counted when the source was asked.
    pub changes: Option<u64>,
}

impl Look {
    fn now(seen: &Attributes, changes: Option<u64>) -> Self {
        Self { when: Instant::now(), seen: *seen, changes }
    }
}

/// A complete copy of a file.
pub struct Copy {
    /// Its bytes.
    pub file: File,
    /// Held while its bytes are being replaced, which may wait for the source.
    pub updating: Mutex<()>,
    /// The stamp that it is a copy of, if that is certain.
    stamp: Mutex<Option<Stamp>>,
    /// The kernel's registration, from its first open in mode Copy.
    pub backing: OnceLock<Arc<Backing>>,
    /// It is the copy to use. Once false it stays so.
    is_current: AtomicBool,
    /// The source does not have all of its bytes.
    is_dirty: AtomicBool,
    /// The last comparison with the source in this life, with the source's answer.
    checked: Mutex<Option<Look>>,
    name: Name,
    space: AtomicU64,
    bytes_in_use: Arc<AtomicU64>,
}

impl Copy {
    /// Makes a current copy. `checked`: the source's answer if it was compared in this life. It
    /// counts in `bytes_in_use` until it is dropped.
    pub fn new(
        file: File,
        stamp: Stamp,
        checked: Option<Attributes>,
        name: Name,
        bytes_in_use: &Arc<AtomicU64>,
    ) -> Arc<Self> {
        let copy = Self {
            file,
            updating: Mutex::default(),
            stamp: Mutex::new(Some(stamp)),
            backing: OnceLock::new(),
            is_current: AtomicBool::new(true),
            is_dirty: AtomicBool::new(false),
            checked: Mutex::new(checked.map(|seen| Look::now(&seen, None))),
            name,
            space: AtomicU64::new(0),
            bytes_in_use: bytes_in_use.clone(),
        };
        copy.resized(stamp.size);
        Arc::new(copy)
    }

    /// Gives it a name, so that a later life finds it, if its bytes are still those of the stamp.
    pub fn keep(&self, identity: Identity, stamp: Stamp) {
        // Its bytes cannot change while this is locked.
        let held = lock(&self.stamp);
        if *held == Some(stamp) {
            self.name.give(&self.file, identity, stamp, || self.is_current());
        }
    }

    /// Makes it obsolete: it is neither used any more nor found by a later life.
    pub fn retire(&self) {
        self.is_current.store(false, Ordering::Release);
        self.name.take();
    }

    /// Marks it as dirty or clean. A dirty copy has bytes that are nowhere else: it stays, and is
    /// of no stamp of the source.
    pub fn has_dirty_bytes(&self, has: bool) {
        if has {
            self.becomes(None);
        }
        self.is_dirty.store(has, Ordering::Release);
    }

    /// Returns whether it is dirty, and must stay.
    pub fn is_dirty(&self) -> bool {
        self.is_dirty.load(Ordering::Acquire)
    }

    /// Returns whether reads may still be served from it.
    pub fn is_current(&self) -> bool {
        self.is_current.load(Ordering::Acquire)
    }

    /// Returns the stamp that it is a copy of, if that is certain.
    pub fn stamp(&self) -> Option<Stamp> {
        *lock(&self.stamp)
    }

    /// Sets the stamp that it is a copy of; `None` if it is of none.
    pub fn becomes(&self, stamp: Option<Stamp>) {
        *lock(&self.stamp) = stamp;
    }

    /// Returns whether it is a copy of this stamp.
    pub fn is_of(&self, stamp: Stamp) -> bool {
        self.stamp() == Some(stamp)
    }

    /// Records a comparison with the source. `changes`: the changes counted before it, if any were.
    pub fn checked(&self, seen: &Attributes, changes: Option<u64>) {
        *lock(&self.checked) = Some(Look::now(seen, changes));
    }

    /// Returns the last comparison with the source.
    pub fn last_look(&self) -> Option<Look> {
        *lock(&self.checked)
    }

    /// Returns the attributes of the last comparison.
    pub fn attributes(&self) -> Option<Attributes> {
        self.last_look().map(|look| look.seen)
    }

    /// Returns whether the last comparison was less than `time` ago.
    pub fn was_checked_within(&self, time: Duration) -> bool {
        self.last_look().is_some_and(|look| look.when.elapsed() < time)
    }

    /// Prepares a change of its bytes in place, which openers will see.
    pub fn begin_change(&self) -> rustix::io::Result<()> {
        self.name.take_for_good()
    }

    /// Returns the bytes that it takes.
    pub fn space(&self) -> u64 {
        self.space.load(Ordering::Relaxed)
    }

    /// Records a new size of its file.
    pub fn resized(&self, bytes: u64) {
        let space = space_of(bytes);
        let before = self.space.swap(space, Ordering::Relaxed);
        self.bytes_in_use.fetch_add(space.wrapping_sub(before), Ordering::Relaxed);
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        self.bytes_in_use.fetch_sub(self.space(), Ordering::Relaxed);
    }
}
