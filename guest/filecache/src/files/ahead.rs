//! The usage history of earlier lives, and prefetching by it (S5.4) while the source is idle, at
//! mount and later.
//!
//! Prefetching follows the history's order, into free room: it evicts no copy. It stops when a file
//! is opened, and pauses when a call to the source takes long.

use std::collections::HashMap;
use std::fs::File;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use flowstone_memory::mutated;
use flowstone_policy::FileId;
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::{Errno, Result};

use super::fill;
use crate::copies::HISTORY_FILES;
use crate::errno;
use crate::files::Files;
use crate::health::SourceState;
use crate::history_file::{HistoryFile, Remembered};
use crate::lock::lock;
use crate::nodes::{Node, SETTLED, is_old};
use crate::source;
use crate::stamp::{Attributes, Identity, Stamp};

/// Bytes copied between two checks for other work.
const CHUNK: u64 = 1 << 20;
/// A source whose call takes this long is busy.
const SLOW: Duration = Duration::from_secs(2);

/// The paths of the files of the history.
#[derive(Default)]
pub struct Memory {
    file: Option<HistoryFile>,
    places: Mutex<HashMap<FileId, Place>>,
    /// Opens being served, and opens so far.
    asking: AtomicU64,
    opens: AtomicU64,
    saved_at: Mutex<u64>,
}

#[derive(Clone)]
struct Place {
    identity: Identity,
    path: Box<[u8]>,
}

/// An open is being served until this is dropped.
pub struct Asking<'a>(&'a Memory);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.asking.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Memory {
    /// Starts with a history file, or without.
    pub fn new(file: Option<HistoryFile>) -> Self {
        Self { file, ..Self::default() }
    }

    /// Counts an open.
    pub fn asks(&self) -> Asking<'_> {
        self.asking.fetch_add(1, Ordering::Relaxed);
        self.opens.fetch_add(1, Ordering::Relaxed);
        Asking(self)
    }
}

/// State of the prefetching thread.
#[derive(Default)]
pub struct Ahead {
    opens: u64,
    is_done: bool,
    /// Files that have changed recently, with the time since which their stamp is the same.
    new: HashMap<FileId, (Stamp, Instant)>,
}

impl Files {
    /// Loads the history of earlier lives.
    pub fn recall(&self) {
        let Some(file) = &self.memory.file else { return };
        let device = self.source.identity().device;
        for it in file.load() {
            let identity = Identity { device, inode: it.inode, birth: it.birth };
            self.copies.restore(identity, it.bytes, it.uses);
            let place = Place { identity, path: it.path };
            lock(&self.memory.places).insert(self.copies.id(identity), place);
        }
    }

    /// Remembers the path of a file.
    pub(crate) fn remember(&self, node: &Node) {
        let is_home = node.identity.device == self.source.identity().device;
        if self.memory.file.is_none() || !is_home {
            return;
        }
        let Some(path) = self.nodes.path(node) else { return };
        let mut places = lock(&self.memory.places);
        // Excess entries are removed when the history is saved.
        if places.len() < 2 * HISTORY_FILES {
            places.insert(self.copies.id(node.identity), Place { identity: node.identity, path });
        }
    }

    /// Saves the history for the next life.
    pub fn save_history(&self) {
        let Some(file) = &self.memory.file else { return };
        let opens = self.memory.opens.load(Ordering::Relaxed);
        let mut saved_at = lock(&self.memory.saved_at);
        if std::mem::replace(&mut *saved_at, opens) == opens {
            return;
        }
        let records = self.copies.history();
        let mut places = lock(&self.memory.places);
        let mut kept = HashMap::new();
        let mut all = Vec::new();
        for it in records {
            let Some(place) = places.remove(&it.file) else { continue };
            let Identity { inode, birth, .. } = place.identity;
            let path = place.path.clone();
            all.push(Remembered { inode, birth, bytes: it.bytes, uses: it.uses, path });
            kept.insert(it.file, place);
        }
        *places = kept;
        drop(places);
        // On failure the old one stays until the next time.
        let _ = file.save(all);
    }

    /// Prefetches files if none was opened since the last call.
    pub fn fetch_ahead(&self, ahead: &mut Ahead) {
        let opens = self.memory.opens.load(Ordering::Relaxed);
        let was_idle = ahead.opens == opens;
        ahead.is_done &= was_idle;
        ahead.opens = opens;
        let is_up = self.hearing.state() == SourceState::Up;
        if !was_idle || ahead.is_done || self.memory.file.is_none() || !is_up {
            return;
        }
        ahead.is_done = true;
        for file in self.copies.to_fetch() {
            let place = lock(&self.memory.places).get(&file).cloned();
            let Some(place) = place else { continue };
            match self.fetch(file, &place, ahead) {
                Err(Errno::NOENT | Errno::STALE) => {
                    lock(&self.memory.places).remove(&file);
                    self.copies.forget_use(place.identity);
                }
                Err(Errno::BUSY) => {
                    ahead.is_done = false;
                    return;
                }
                Err(Errno::TIMEDOUT) => return,
                _ => {}
            }
        }
    }

    fn fetch(&self, file: FileId, place: &Place, ahead: &mut Ahead) -> Result<()> {
        self.may_go_on(Instant::now())?;
        let _asking = self.hearing.asks();
        let began = Instant::now();
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let opened = openat2(self.source.root(), &*place.path, flags, Mode::empty(), within)?;
        let from = File::from(opened);
        let seen = source::stat(&from)?;
        let is_same = mutated("guest.ahead.takes-any-file", seen.identity == place.identity, true);
        if !is_same || !seen.is_file() {
            return Err(Errno::STALE);
        }
        self.may_go_on(began)?;
        if !ahead.is_settled(file, seen.stamp) {
            ahead.is_done = false;
            return Ok(());
        }
        if !self.copies.holds_ahead(place.identity, seen.stamp.size) {
            return Ok(());
        }
        let Some(begun) = self.copies.begin_fill(place.identity) else { return Ok(()) };
        let copied = self.copy_ahead(&from, &seen);
        let why = copied.as_ref().err().copied();
        let copied = copied.ok().flatten().map(|file| (file, seen));
        if self.copies.end_fill(&begun, copied) {
            self.counters.fills.add(1);
            self.counters.prefetched_bytes.add(seen.stamp.size);
        } else if self.copies.wants(place.identity) {
            self.copies.drop_file(place.identity);
        }
        why.map_or(Ok(()), Err)
    }

    fn copy_ahead(&self, from: &File, seen: &Attributes) -> Result<Option<File>> {
        let to = self.copies.new_file().map_err(errno)?;
        let size = seen.stamp.size;
        for at in (0..size).step_by(CHUNK as usize) {
            let began = Instant::now();
            fill::copy_range(from, &to, at, size.min(at + CHUNK))?;
            self.may_go_on(began)?;
        }
        let is_whole = to.metadata().map_err(errno)?.len() == size;
        let is_same = source::stat(from)?.stamp == seen.stamp;
        let is_same = mutated("guest.ahead.keeps-what-changed", is_same, true);
        Ok((is_whole && is_same).then_some(to))
    }

    /// Returns whether there is no other work and the source has answered quickly.
    fn may_go_on(&self, began: Instant) -> Result<()> {
        let is_asked = self.memory.asking.load(Ordering::Relaxed) > 0 || self.fills.has_work();
        if is_asked {
            return Err(Errno::BUSY);
        }
        if began.elapsed() < SLOW { Ok(()) } else { Err(Errno::TIMEDOUT) }
    }
}

impl Ahead {
    fn is_settled(&mut self, file: FileId, stamp: Stamp) -> bool {
        let first = self.new.entry(file).or_insert_with(|| (stamp, Instant::now()));
        if first.0 != stamp {
            *first = (stamp, Instant::now());
        }
        let is_settled = first.1.elapsed() >= SETTLED || is_old(stamp);
        if is_settled {
            self.new.remove(&file);
        }
        is_settled
    }
}

#[cfg(test)]
#[path = "ahead_tests.rs"]
mod tests;
