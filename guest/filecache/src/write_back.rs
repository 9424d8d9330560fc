//! Files whose bytes are newer here than at the source (S5.3: what is dirty in the write map).
//!
//! Such a file has a complete copy, to which writes go, and the ranges that the source does not
//! have yet. Each open of the file meanwhile goes through the daemon, and to that copy. A file is
//! dirty for so long at most, and all together have so many dirty bytes. It is written through its
//! own descriptor, opened by the writer, and only onto the bytes that it was a copy of: what others
//! have changed is never written over.
//!
//! Lock order: `flushing`, which is held across calls to the source, and for which nothing waits
//! but what brings the file there; `WriteBack::table`; a file's `state`; `AtSource`, `Copies`.

mod at_source;

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use flowstone_memory::mutant;
use rustix::io::{Errno, Result};

use self::at_source::AtSource;
pub use self::at_source::{Looking, Through};
use crate::callers::Caller;
use crate::copy::Copy;
use crate::lock::lock;
use crate::nodes::Node;
use crate::options::WriteBackOptions;
use crate::ranges::Ranges;
use crate::stamp::{Attributes, Identity, Stamp, Time};

/// The files of a mount that are open for writing so, or dirty.
#[derive(Default)]
pub struct WriteBack {
    options: Option<WriteBackOptions>,
    table: Mutex<HashMap<Identity, Arc<Dirty>>>,
    bytes: AtomicU64,
    is_closing: AtomicBool,
    /// Changes whenever the source's file of a dirty one does: an answer that was given before says
    /// nothing any more.
    generation: AtomicU64,
    at_source: AtSource,
}

/// One of them.
pub struct Dirty {
    /// Which file.
    pub node: Arc<Node>,
    /// Its first writer.
    pub caller: Caller,
    /// The folder that it was opened in, and its name there.
    pub place: (Arc<OwnedFd>, OsString),
    /// Its bytes.
    pub copy: Arc<Copy>,
    /// The source's file, as its first writer has opened it.
    pub file: Arc<File>,
    /// Held while it is written to the source.
    pub flushing: Mutex<()>,
    /// Its last name was taken away here.
    pub is_removed: AtomicBool,
    state: Mutex<State>,
}

struct State {
    /// What the source's file was when the copy was the same; nothing if that cannot be known.
    base: Option<Stamp>,
    ranges: Ranges,
    /// Those that are being written to the source.
    in_flight: Ranges,
    /// All of these, as they are counted for the mount.
    counted: u64,
    since: Option<Instant>,
    writers: u32,
    /// What the source has said last when it refused bytes, and how often it did.
    refused: (u64, Errno),
    /// Writes go to the source from now on.
    has_ended: bool,
}

impl WriteBack {
    /// With these bounds; none without them.
    pub fn new(options: Option<WriteBackOptions>) -> Self {
        Self { options, ..Self::default() }
    }

    /// Returns whether a file may become dirty.
    pub fn is_on(&self) -> bool {
        self.options.is_some() && !self.is_closing.load(Ordering::Relaxed)
    }

    /// A file is changed at the source: until that is over it does not become dirty.
    pub fn writes_through(&self, identity: Identity) -> Option<Through<'_>> {
        self.options.map(|_| self.at_source.writes_through(identity))
    }

    /// A writer is about to ask the source what a file is.
    pub fn looks(&self, identity: Identity) -> Looking<'_> {
        self.at_source.looks(identity)
    }

    /// See `generation`.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn next_generation(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    fn changed(&self, dirty: &Dirty) {
        self.next_generation();
        self.at_source.changed(dirty.node.identity);
    }

    /// No file becomes dirty any more.
    pub fn close(&self) {
        self.is_closing.store(true, Ordering::Relaxed);
    }

    /// Returns whether a close leaves a file dirty.
    pub fn closes_lazily(&self) -> bool {
        self.options.is_some_and(|it| it.lazy_close) && self.is_on()
    }

    /// How long a file may be dirty.
    pub fn time_max(&self) -> Option<Duration> {
        self.options.map(|it| it.time)
    }

    /// Returns whether so many bytes may be dirty at all.
    pub fn has_place_for(&self, bytes: usize) -> bool {
        self.options.is_some_and(|it| bytes as u64 <= it.bytes)
    }

    /// Bytes that the source does not have yet.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The one of a file.
    pub fn of(&self, identity: Identity) -> Option<Arc<Dirty>> {
        self.options?;
        lock(&self.table).get(&identity).cloned()
    }

    /// Each, dirty or not.
    pub fn everything(&self) -> Vec<Arc<Dirty>> {
        lock(&self.table).values().cloned().collect()
    }

    /// A writer opens a file. `start` makes what there is of a file that is not there yet, of what
    /// was seen while it was `looking`, and calls no source. Nothing if that is not the file any
    /// more.
    pub fn open(
        &self,
        identity: Identity,
        looking: &Looking<'_>,
        start: impl FnOnce() -> Option<Dirty>,
    ) -> Option<Arc<Dirty>> {
        let mut table = lock(&self.table);
        if let Some(dirty) = table.get(&identity) {
            lock(&dirty.state).writers += 1;
            return Some(dirty.clone());
        }
        if !looking.holds() {
            return None;
        }
        let dirty = Arc::new(start()?);
        table.insert(identity, dirty.clone());
        Some(dirty)
    }

    /// A writer has closed it. Returns whether it is to be ended.
    pub fn close_one(&self, dirty: &Dirty) -> bool {
        let mut state = lock(&dirty.state);
        state.writers -= 1;
        state.writers == 0 && !state.is_dirty()
    }

    /// It is dirty no more, and writes go to the source. `must` it, or only if nobody writes it? To
    /// be called while `flushing` is held. Returns whether that is so.
    pub fn end(&self, dirty: &Dirty, must: bool) -> bool {
        let mut table = lock(&self.table);
        let mut state = lock(&dirty.state);
        let may = !state.is_dirty() && (must || state.writers == 0);
        if may && dirty.copy.is_dirty() {
            state.has_ended = true;
            dirty.copy.has_dirty_bytes(false);
            table.remove(&dirty.node.identity);
            self.next_generation();
        }
        may
    }

    /// All of them, the oldest first.
    pub fn all(&self) -> Vec<Arc<Dirty>> {
        let mut all: Vec<_> = lock(&self.table).values().cloned().collect();
        all.sort_by_cached_key(|it| lock(&it.state).since);
        all.retain(|it| lock(&it.state).is_dirty());
        all
    }

    /// Writes into the copy. Nothing if there is no room for more dirty bytes, if the source has
    /// refused earlier ones, or if the copy cannot take them: then the source is to be asked.
    /// `has_room` for a copy that grows by so much?
    pub fn write(
        &self,
        dirty: &Dirty,
        offset: u64,
        from: &[u8],
        has_room: impl Fn(u64) -> bool,
    ) -> Option<usize> {
        let end = offset.checked_add(from.len() as u64)?;
        let mut state = lock(&dirty.state);
        if state.has_ended {
            return None;
        }
        let counted = state.counted + state.ranges.missing(offset, end);
        let size = dirty.copy.file.metadata().ok()?.len();
        if !has_room(end.saturating_sub(size)) || !self.count(state.counted, counted) {
            return None;
        }
        // Bytes of a write that fails half-way are dirty, too: the caller writes them all again.
        state.ranges.insert(offset, end);
        state.counted = counted;
        state.since.get_or_insert_with(Instant::now);
        let written = dirty.copy.file.write_all_at(from, offset);
        dirty.copy.resized(size.max(end));
        written.ok().map(|()| from.len())
    }

    /// A file has so many dirty bytes now. Returns whether there is room for them.
    fn count(&self, before: u64, now: u64) -> bool {
        let bytes_max = self.options.map_or(0, |it| it.bytes);
        let more = now.saturating_sub(before);
        let counted = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |bytes| {
            let is_within = bytes + more <= bytes_max || mutant("guest.write-back.has-no-bound");
            (more == 0 || is_within).then(|| (bytes + now).saturating_sub(before))
        });
        counted.is_ok()
    }

    /// Takes what is to be written to the source, with what its file must be for that.
    pub fn begin_flush(&self, dirty: &Dirty) -> Option<(Ranges, Option<Stamp>)> {
        let mut state = lock(&dirty.state);
        if state.ranges.is_empty() {
            return None;
        }
        state.in_flight = std::mem::take(&mut state.ranges);
        Some((state.in_flight.clone(), state.base))
    }

    /// It was written, or not. `base` is what the source's file is now, as far as that is known.
    pub fn end_flush(&self, dirty: &Dirty, is_written: bool, base: Option<Stamp>) {
        let mut state = lock(&dirty.state);
        self.changed(dirty);
        let in_flight = std::mem::take(&mut state.in_flight);
        if !is_written && !mutant("guest.write-back.forgets-what-failed") {
            state.ranges.extend(&in_flight);
        }
        state.base = base;
        state.since = state.since.filter(|_| !is_written);
        if !state.ranges.is_empty() {
            state.since.get_or_insert_with(Instant::now);
        }
        let counted = state.ranges.bytes();
        self.count(state.counted, counted);
        state.counted = counted;
    }

    /// What the source's file was when the copy was the same.
    pub fn base(&self, dirty: &Dirty) -> Option<Stamp> {
        lock(&dirty.state).base
    }

    /// The source's file was changed from here, and the copy with it.
    pub fn rebase(&self, dirty: &Dirty, base: Stamp) {
        self.changed(dirty);
        lock(&dirty.state).base = Some(base);
    }

    /// Its bytes are safe elsewhere, or not wanted any more.
    pub fn forget_bytes(&self, dirty: &Dirty) {
        let mut state = lock(&dirty.state);
        (state.ranges, state.in_flight) = Default::default();
        self.count(state.counted, 0);
        (state.counted, state.since) = (0, None);
    }
}

impl State {
    fn is_dirty(&self) -> bool {
        !self.ranges.is_empty() || !self.in_flight.is_empty()
    }
}

impl Dirty {
    /// A file with one writer, whose copy is that of `base`.
    pub fn new(
        node: Arc<Node>,
        caller: Caller,
        place: (Arc<OwnedFd>, OsString),
        copy: Arc<Copy>,
        file: Arc<File>,
        base: Stamp,
    ) -> Self {
        copy.has_dirty_bytes(true);
        let state = State {
            base: Some(base),
            ranges: Ranges::default(),
            in_flight: Ranges::default(),
            counted: 0,
            since: None,
            writers: 1,
            refused: (0, Errno::IO),
            has_ended: false,
        };
        let (flushing, state) = (Mutex::default(), Mutex::new(state));
        let is_removed = AtomicBool::new(false);
        Self { node, caller, place, copy, file, flushing, is_removed, state }
    }

    /// Nothing is written to the copy any more, or it is again.
    pub fn freeze(&self, is_frozen: bool) {
        lock(&self.state).has_ended = is_frozen;
    }

    /// Returns whether writes go to the source.
    pub fn has_ended(&self) -> bool {
        lock(&self.state).has_ended
    }

    /// Returns whether the source does not have all of its bytes.
    pub fn is_dirty(&self) -> bool {
        lock(&self.state).is_dirty()
    }

    /// Since when.
    pub fn since(&self) -> Option<Instant> {
        lock(&self.state).since
    }

    /// The source has refused its bytes. Each of its writers is told.
    pub fn failed(&self, error: Errno) {
        let mut state = lock(&self.state);
        state.refused = (state.refused.0 + 1, error);
    }

    /// For one who opens it now.
    pub fn refusals(&self) -> AtomicU64 {
        AtomicU64::new(lock(&self.state).refused.0)
    }

    /// Returns whether it has, since a writer was told last.
    pub fn has_failed(&self, told: &AtomicU64) -> bool {
        self.error(told).is_err()
    }

    /// What the source has said since a writer was told last.
    pub fn error(&self, told: &AtomicU64) -> Result<()> {
        let (refusals, error) = lock(&self.state).refused;
        if refusals > told.load(Ordering::Relaxed) { Err(error) } else { Ok(()) }
    }

    /// The same. The writer is told now.
    pub fn take_error(&self, told: &AtomicU64) -> Result<()> {
        let (refusals, error) = lock(&self.state).refused;
        let told = told.fetch_max(refusals, Ordering::Relaxed);
        if refusals > told { Err(error) } else { Ok(()) }
    }

    /// What the kernel is to know of it.
    pub fn shown(&self, seen: Attributes) -> Attributes {
        let Some(here) = self.copy.file.metadata().ok().filter(|_| self.is_dirty()) else {
            return seen;
        };
        let time = |seconds, nanoseconds: i64| Time {
            seconds,
            nanoseconds: u32::try_from(nanoseconds).unwrap_or_default(),
        };
        let stamp = Stamp {
            size: here.len(),
            modified: time(here.mtime(), here.mtime_nsec()),
            changed: time(here.ctime(), here.ctime_nsec()),
        };
        Attributes { stamp, blocks: here.len().div_ceil(512), ..seen }
    }
}
