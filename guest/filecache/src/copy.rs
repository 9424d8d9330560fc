//! A copy of a file: complete, and of a stamp of the file.

use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use crate::kernel::Backing;
use crate::lock::lock;
use crate::shelf::Name;
use crate::stamp::{Attributes, Identity, Stamp};
use crate::store::space_of;

/// What the source has said of a file.
#[derive(Clone, Copy)]
pub struct Look {
    /// When.
    pub when: Instant,
    /// The answer.
    pub seen: Attributes,
    /// How many changes were counted when it was asked.
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
    /// What they are a copy of, if that is sure.
    stamp: Mutex<Option<Stamp>>,
    /// The kernel's hold on it, from its first open in mode Copy.
    pub backing: OnceLock<Arc<Backing>>,
    /// It is the copy to use. Once false it stays so.
    is_current: AtomicBool,
    /// The source does not have all of its bytes.
    is_dirty: AtomicBool,
    /// When it was compared with the source in this life, and what that said.
    checked: Mutex<Option<Look>>,
    name: Name,
    space: AtomicU64,
    bytes_in_use: Arc<AtomicU64>,
}

impl Copy {
    /// A copy that is to be used from now on. `checked`: what the source said when it was compared
    /// with that in this life. It counts for `bytes_in_use` as long as it is there.
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

    /// A later life may find it, if its bytes are those of the stamp still.
    pub fn keep(&self, identity: Identity, stamp: Stamp) {
        // They stay as they are while it is held.
        let held = lock(&self.stamp);
        if *held == Some(stamp) {
            self.name.give(&self.file, identity, stamp, || self.is_current());
        }
    }

    /// It is not the copy to use any more, nor is it found again by a later life.
    pub fn retire(&self) {
        self.is_current.store(false, Ordering::Release);
        self.name.take();
    }

    /// It is written to, and is the only one that has some bytes; or not any more. While it is it
    /// stays, and is a copy of nothing that the source has.
    pub fn has_dirty_bytes(&self, has: bool) {
        if has {
            self.becomes(None);
        }
        self.is_dirty.store(has, Ordering::Release);
    }

    /// Returns whether it must stay.
    pub fn is_dirty(&self) -> bool {
        self.is_dirty.load(Ordering::Acquire)
    }

    /// Returns whether reads may still be answered from it.
    pub fn is_current(&self) -> bool {
        self.is_current.load(Ordering::Acquire)
    }

    /// What it is a copy of, if that is sure.
    pub fn stamp(&self) -> Option<Stamp> {
        *lock(&self.stamp)
    }

    /// It is a copy of this from now on, or of nothing.
    pub fn becomes(&self, stamp: Option<Stamp>) {
        *lock(&self.stamp) = stamp;
    }

    /// Returns whether it is a copy of what the source has.
    pub fn is_of(&self, stamp: Stamp) -> bool {
        self.stamp() == Some(stamp)
    }

    /// It was compared with the source. `changes`: those before that, if they were counted.
    pub fn checked(&self, seen: &Attributes, changes: Option<u64>) {
        *lock(&self.checked) = Some(Look::now(seen, changes));
    }

    /// What the source said then.
    pub fn last_look(&self) -> Option<Look> {
        *lock(&self.checked)
    }

    /// The attributes of that.
    pub fn attributes(&self) -> Option<Attributes> {
        self.last_look().map(|look| look.seen)
    }

    /// Returns whether that was so short a time ago.
    pub fn was_checked_within(&self, time: Duration) -> bool {
        self.last_look().is_some_and(|look| look.when.elapsed() < time)
    }

    /// Its bytes are about to change in place, for those who have it open.
    pub fn begin_change(&self) -> rustix::io::Result<()> {
        self.name.take_for_good()
    }

    /// What it takes.
    pub fn space(&self) -> u64 {
        self.space.load(Ordering::Relaxed)
    }

    /// Its file has another size now.
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
