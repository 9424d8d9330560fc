//! Files with bytes that are not yet at the source (S5.3: the dirty entries of the write map).
//!
//! Such a file has a complete copy, to which writes go, and the set of ranges that the source does
//! not have yet. Each open of the file meanwhile goes through the daemon, and to that copy. The
//! time that a file may be dirty, and the dirty bytes of all files, are limited. It is written
//! through its own descriptor, opened by the writer, and only onto the version that it was a copy
//! of: changes by others are never overwritten.
//!
//! Lock order: `flushing`, which is held across calls to the source, and which only flushes of the
//! file wait for; `WriteBack::table`; a file's `state`; `AtSource`, `Copies`.

mod at_source;

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use flowstone_memory::mutated;
use rustix::fs::Timespec;
use rustix::io::{Errno, Result};

use self::at_source::AtSource;
pub use self::at_source::{Looking, Through};
use crate::callers::Caller;
use crate::copy::Copy;
use crate::lock::lock;
use crate::nodes::Node;
use crate::options::WriteBackOptions;
use crate::ranges::Ranges;
use crate::stamp::{Attributes, Identity, Stamp};

/// The files of a mount that are open for kept-back writes, or dirty.
#[derive(Default)]
pub struct WriteBack {
    options: Option<WriteBackOptions>,
    table: Mutex<HashMap<Identity, Arc<Dirty>>>,
    bytes: AtomicU64,
    is_closing: AtomicBool,
    /// Incremented whenever the source's file of a dirty one changes: older answers of the source
    /// are then invalid.
    generation: AtomicU64,
    at_source: AtSource,
}

/// The write-back state of a file.
pub struct Dirty {
    /// Its node.
    pub node: Arc<Node>,
    /// Its first writer.
    pub caller: Caller,
    /// The folder that it was opened in, and its name there.
    pub place: (Arc<OwnedFd>, OsString),
    /// The copy that its writes go to.
    pub copy: Arc<Copy>,
    /// The source's file, opened on behalf of its first writer.
    pub file: Arc<File>,
    /// Held while it is written to the source.
    pub flushing: Mutex<()>,
    /// Its last name was removed here.
    pub is_removed: AtomicBool,
    state: Mutex<State>,
}

struct State {
    /// The stamp of the source's file that the copy is based on; `None` if it is unknown.
    base: Option<Stamp>,
    ranges: Ranges,
    /// Ranges that are being written to the source.
    in_flight: Ranges,
    /// Dirty bytes of this file, as counted in the mount's total.
    counted: u64,
    since: Option<Instant>,
    writers: u32,
    /// The number of refusals by the source, and the error of the last one.
    refused: (u64, Errno),
    /// Writes go to the source from now on.
    has_ended: bool,
}

impl WriteBack {
    /// Starts with these limits; `None` disables write-back.
    pub fn new(options: Option<WriteBackOptions>) -> Self {
        Self { options, ..Self::default() }
    }

    /// Returns whether a file may become dirty.
    pub fn is_on(&self) -> bool {
        self.options.is_some() && !self.is_closing.load(Ordering::Relaxed)
    }

    /// Blocks a file from becoming dirty while it is changed at the source.
    pub fn writes_through(&self, identity: Identity) -> Option<Through<'_>> {
        self.options.map(|_| self.at_source.writes_through(identity))
    }

    /// Registers a writer that is about to ask the source for a file.
    pub fn looks(&self, identity: Identity) -> Looking<'_> {
        self.at_source.looks(identity)
    }

    /// Returns the current `generation`.
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

    /// Disables write-back: no file becomes dirty any more.
    pub fn close(&self) {
        self.is_closing.store(true, Ordering::Relaxed);
    }

    /// Returns whether a close leaves a file dirty.
    pub fn closes_lazily(&self) -> bool {
        self.options.is_some_and(|it| it.lazy_close) && self.is_on()
    }

    /// Returns the longest time that a file may be dirty.
    pub fn time_max(&self) -> Option<Duration> {
        self.options.map(|it| it.time)
    }

    /// Returns whether `bytes` bytes may be dirty at all.
    pub fn has_place_for(&self, bytes: usize) -> bool {
        self.options.is_some_and(|it| bytes as u64 <= it.bytes)
    }

    /// Returns the bytes that are not yet at the source.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the state of a file.
    pub fn of(&self, identity: Identity) -> Option<Arc<Dirty>> {
        self.options?;
        lock(&self.table).get(&identity).cloned()
    }

    /// Returns the states of all files, dirty or not.
    pub fn everything(&self) -> Vec<Arc<Dirty>> {
        lock(&self.table).values().cloned().collect()
    }

    /// Registers an opening writer. `start` makes the state of a file that has none, from what was
    /// seen while `looking`; it must not call the source. `None` if the file has changed since.
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

    /// Unregisters a writer. Returns whether the state is to be ended.
    pub fn close_one(&self, dirty: &Dirty) -> bool {
        let mut state = lock(&dirty.state);
        state.writers -= 1;
        state.writers == 0 && !state.is_dirty()
    }

    /// Ends the state of a clean file, so that writes go to the source; with `must` even if it has
    /// writers. The caller holds `flushing`. Returns whether it has ended.
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

    /// Returns the dirty files, the oldest first.
    pub fn all(&self) -> Vec<Arc<Dirty>> {
        let mut all: Vec<_> = lock(&self.table).values().cloned().collect();
        all.sort_by_cached_key(|it| lock(&it.state).since);
        all.retain(|it| lock(&it.state).is_dirty());
        all
    }

    /// Writes into the copy. `None` if there is no room for more dirty bytes, if the source has
    /// refused earlier ones, or if the copy cannot take them: then the write goes to the source.
    /// `has_room` tells whether the copy may grow by the given bytes.
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
        // Bytes of a partly failed write are dirty, too: the caller writes them all again.
        state.ranges.insert(offset, end);
        state.counted = counted;
        state.since.get_or_insert_with(Instant::now);
        let written = dirty.copy.file.write_all_at(from, offset);
        dirty.copy.resized(size.max(end));
        written.ok().map(|()| from.len())
    }

    /// Updates the count of a file's dirty bytes. Returns whether the limit allows it.
    fn count(&self, before: u64, now: u64) -> bool {
        let bytes_max = self.options.map_or(0, |it| it.bytes);
        let more = now.saturating_sub(before);
        let counted = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |bytes| {
            let is_within = bytes + more <= bytes_max;
            let is_within = mutated("guest.write-back.has-no-bound", is_within, true);
            (more == 0 || is_within).then(|| (bytes + now).saturating_sub(before))
        });
        counted.is_ok()
    }

    /// Takes the ranges to be written, with the stamp that the source's file must have.
    pub fn begin_flush(&self, dirty: &Dirty) -> Option<(Ranges, Option<Stamp>)> {
        let mut state = lock(&dirty.state);
        if state.ranges.is_empty() {
            return None;
        }
        state.in_flight = std::mem::take(&mut state.ranges);
        Some((state.in_flight.clone(), state.base))
    }

    /// Ends a flush. `base` is the new stamp of the source's file, as far as it is known.
    pub fn end_flush(&self, dirty: &Dirty, is_written: bool, base: Option<Stamp>) {
        let mut state = lock(&dirty.state);
        self.changed(dirty);
        let in_flight = std::mem::take(&mut state.in_flight);
        let is_owed = mutated("guest.write-back.forgets-what-failed", !is_written, false);
        if is_owed {
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

    /// Returns the stamp that the copy is based on.
    pub fn base(&self, dirty: &Dirty) -> Option<Stamp> {
        lock(&dirty.state).base
    }

    /// Sets another base, after the source's file was changed from here, and the copy with it.
    pub fn rebase(&self, dirty: &Dirty, base: Stamp) {
        self.changed(dirty);
        lock(&dirty.state).base = Some(base);
    }

    /// Drops the dirty ranges: the bytes are safe elsewhere, or not needed any more.
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
    /// Makes the state of a file with one writer, whose copy is that of `base`.
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

    /// Stops or resumes writes to the copy.
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

    /// Returns the time since which it is dirty.
    pub fn since(&self) -> Option<Instant> {
        lock(&self.state).since
    }

    /// Records a refusal of the source, of which each writer is to be told.
    pub fn failed(&self, error: Errno) {
        let mut state = lock(&self.state);
        state.refused = (state.refused.0 + 1, error);
    }

    /// Returns the number of refusals, as a new opener's count of those told.
    pub fn refusals(&self) -> AtomicU64 {
        AtomicU64::new(lock(&self.state).refused.0)
    }

    /// Returns the error of the source since a writer was told last.
    pub fn error(&self, told: &AtomicU64) -> Result<()> {
        let (refusals, error) = lock(&self.state).refused;
        if refusals > told.load(Ordering::Relaxed) { Err(error) } else { Ok(()) }
    }

    /// Returns the same error, and marks it as told.
    pub fn take_error(&self, told: &AtomicU64) -> Result<()> {
        let (refusals, error) = lock(&self.state).refused;
        let told = told.fetch_max(refusals, Ordering::Relaxed);
        if refusals > told { Err(error) } else { Ok(()) }
    }

    /// Returns the attributes for the kernel.
    pub fn shown(&self, seen: Attributes) -> Attributes {
        let Some(here) = self.copy.file.metadata().ok().filter(|_| self.is_dirty()) else {
            return seen;
        };
        let time = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
        let stamp = Stamp {
            size: here.len(),
            modified: time(here.mtime(), here.mtime_nsec()),
            changed: time(here.ctime(), here.ctime_nsec()),
        };
        Attributes { stamp, blocks: here.len().div_ceil(512), ..seen }
    }
}
