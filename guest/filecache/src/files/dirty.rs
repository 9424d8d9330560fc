//! Writes that are kept back (`--write-back`), and how they come to the source.

use std::cell::OnceCell;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use flowstone_memory::mutant;
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::{Errno, Result};

use super::fill;
use super::open::Look;
use crate::callers::Caller;
use crate::errno;
use crate::files::Files;
use crate::handles::Handle;
use crate::lock::lock;
use crate::nodes::Node;
use crate::source;
use crate::stamp::{Attributes, Identity, Stamp};
use crate::write_back::Dirty;

/// Names that are tried for a file that is kept beside another one.
const NAMES_MAX: u32 = 100;

impl Files {
    /// The kernel leaves it to an open to empty the file (where writes are kept back, so that it
    /// is known to be empty then). Returns the source's file.
    pub(super) fn empty(&self, node: &Node, flags: OFlags, by: &Caller) -> Result<Arc<File>> {
        let file = OnceCell::new();
        self.change_at_source(node.identity, Some(0), || {
            let _acting = by.act();
            let anchor = self.nodes.anchor(node)?;
            let opened = source::reopen(anchor, source::daemon_flags(flags) | OFlags::TRUNC)?;
            // It is done once.
            let _ = file.set(Arc::new(opened));
            Ok(())
        })?;
        self.copies.retire(node.identity);
        self.patch_open_copy(node.identity, 0, 0);
        file.into_inner().ok_or(Errno::IO)
    }

    /// A writer opens a file whose writes may be kept back: for that the daemon opens the source's
    /// file, for the writer, and compares it with the copy by that.
    pub(super) fn keep_back(
        &self,
        node: &Arc<Node>,
        flags: OFlags,
        caller: &Caller,
        look: &mut Look,
    ) -> Option<Arc<Dirty>> {
        if !self.write_back.is_on() {
            return None;
        }
        if look.file.is_none() {
            let _acting = caller.act();
            let file = source::reopen(look.anchor.as_ref()?, source::daemon_flags(flags)).ok()?;
            look.file = Some(Arc::new(file));
        }
        let dirty = self.open_to_write(node, caller, look.file.as_ref()?)?;
        look.copy = Some(dirty.copy.clone());
        Some(dirty)
    }

    /// A file is opened for writing: what it may become dirty in. `file` is that of the source.
    fn open_to_write(
        &self,
        node: &Arc<Node>,
        caller: &Caller,
        file: &Arc<File>,
    ) -> Option<Arc<Dirty>> {
        if !self.bindings.suits_write_back(node) {
            return None;
        }
        let seen = source::stat(&**file).ok().filter(|seen| !seen.is_set_id())?;
        let (folder, name) = node.place();
        let place = (self.nodes.folder(folder).ok()?, name);
        self.write_back.open(node.identity, || {
            let copy = self.copies.copy_to_write(node.identity, &seen)?;
            let (node, caller, file) = (node.clone(), caller.clone(), file.clone());
            Some(Dirty::new(node, caller, place, copy, file, seen.stamp))
        })
    }

    /// A writer is gone.
    pub(crate) fn close_to_write(&self, dirty: &Dirty) {
        if self.write_back.close_one(dirty) {
            let _flushing = lock(&dirty.flushing);
            self.end(dirty, false);
        }
    }

    /// What the kernel is to know of a file.
    pub(crate) fn shown(&self, seen: Attributes) -> Attributes {
        self.write_back.of(seen.identity).map_or(seen, |dirty| dirty.shown(seen))
    }

    /// Whether the writes of a file are kept back.
    pub fn keeps_back(&self, id: u64) -> bool {
        let node = self.nodes.get(id).ok();
        node.is_some_and(|node| self.write_back.of(node.identity).is_some())
    }

    /// Writes into the copy of a dirty file, if that is all there is to do.
    pub fn write_here(&self, number: u64, offset: u64, from: &[u8]) -> Option<usize> {
        let handle = self.handles.get(number).ok()?;
        self.write_to_copy(handle.dirty.as_ref()?, offset, from)
    }

    fn write_to_copy(&self, dirty: &Dirty, offset: u64, from: &[u8]) -> Option<usize> {
        let has_room = |more| self.copies.has_room(more);
        let written = self.write_back.write(dirty, offset, from, has_room)?;
        self.counters.written_bytes.add(written as u64);
        Some(written)
    }

    /// The same when there is no room: older bytes make way. Nothing if these have to go to the
    /// source themselves.
    pub(crate) fn write_after_others(
        &self,
        handle: &Handle,
        offset: u64,
        from: &[u8],
    ) -> Result<Option<usize>> {
        let Some(dirty) = &handle.dirty else { return Ok(None) };
        dirty.take_error()?;
        let fits = self.write_back.has_place_for(from.len()) && !dirty.has_ended();
        let others = if fits { self.write_back.all() } else { Vec::new() };
        for oldest in others {
            if let Some(written) = self.write_to_copy(dirty, offset, from) {
                return Ok(Some(written));
            }
            // Its own writer is told, when it asks.
            let _ = self.flush_dirty(&oldest).inspect_err(|error| oldest.failed(*error));
        }
        if let Some(written) = self.write_to_copy(dirty, offset, from) {
            return Ok(Some(written));
        }
        self.settle(handle.node.identity)?;
        Ok(None)
    }

    /// Something is to be done to a file that is done at the source: first that gets all bytes, and
    /// from now on it gets them at once.
    pub(crate) fn settle(&self, identity: Identity) -> Result<()> {
        let Some(dirty) = self.write_back.of(identity) else { return Ok(()) };
        loop {
            self.flush_dirty(&dirty)?;
            let _flushing = lock(&dirty.flushing);
            // Unless more was written meanwhile.
            if self.end(&dirty, true) {
                return Ok(());
            }
        }
    }

    /// The same for what has a name that is about to change. `only_linked`: not for a file that is
    /// gone with its name: its bytes never need to be anywhere.
    pub(crate) fn settle_at(&self, folder: u64, name: &OsStr, only_linked: bool) -> Result<()> {
        let there = self.write_back.at(|node| node.place() == (folder, name.to_owned()));
        let Some(dirty) = there else { return Ok(()) };
        let has_links = source::stat(&*dirty.file)?.links > 1;
        if only_linked && !has_links { Ok(()) } else { self.settle(dirty.node.identity) }
    }

    /// Ends it, if there is nothing to be written. `flushing` is held.
    fn end(&self, dirty: &Dirty, must: bool) -> bool {
        let is_ended = self.write_back.end(dirty, must);
        if is_ended {
            // It may be wanted again; a change that came within a tick of ours may be in it.
            self.copies.retire(dirty.node.identity);
        }
        is_ended
    }

    /// Does something to a file at the source, which may give it another size. One whose writes
    /// are kept back has all its bytes there before, and goes on being what its copy is of.
    pub(crate) fn change_at_source(
        &self,
        identity: Identity,
        size: Option<u64>,
        work: impl Fn() -> Result<()>,
    ) -> Result<()> {
        let Some(dirty) = self.write_back.of(identity) else { return work() };
        let flushing = lock(&dirty.flushing);
        if size != Some(0) {
            self.flush_locked(&dirty)?;
        }
        if self.write_back.base(&dirty) != Some(source::stat_now(&*dirty.file)?.stamp) {
            drop(flushing);
            self.settle(identity)?;
            return work();
        }
        work()?;
        if let Some(size) = size {
            if size == 0 {
                self.write_back.forget_bytes(&dirty);
            }
            dirty.copy.file.set_len(size).map_err(errno)?;
            dirty.copy.resized(size);
        }
        self.write_back.rebase(&dirty, source::stat_now(&*dirty.file)?.stamp);
        Ok(())
    }

    /// Brings the bytes of a file to the source.
    pub(crate) fn flush_dirty(&self, dirty: &Dirty) -> Result<()> {
        let _flushing = lock(&dirty.flushing);
        self.flush_locked(dirty)
    }

    /// The same while `flushing` is held.
    fn flush_locked(&self, dirty: &Dirty) -> Result<()> {
        let Some((ranges, base)) = self.write_back.begin_flush(dirty) else { return Ok(()) };
        let ranges: Vec<_> = ranges.iter().collect();
        let result = self.bring(dirty, &ranges, base);
        // What a server has not got yet it gets for that.
        let now = source::stat_now(&*dirty.file).ok().map(|it| it.stamp);
        self.write_back.end_flush(dirty, result == Ok(Brought::Written), now);
        match result {
            Ok(Brought::Written) => {
                // Also when its last writer is gone already.
                self.end(dirty, false);
                Ok(())
            }
            Ok(Brought::NotNeeded) => {
                self.write_back.forget_bytes(dirty);
                self.end(dirty, false);
                Ok(())
            }
            Ok(Brought::Beside) => {
                self.write_back.forget_bytes(dirty);
                self.end(dirty, true);
                self.take_back_attributes(&dirty.node);
                Err(Errno::STALE)
            }
            Err(error) => Err(error),
        }
    }

    /// Brings what was written through an open file to the source, and says what that has said
    /// before.
    pub(crate) fn flush_handle(&self, handle: &Handle) -> Result<()> {
        let Some(dirty) = &handle.dirty else { return Ok(()) };
        dirty.take_error()?;
        self.flush_dirty(dirty)
    }

    fn bring(&self, dirty: &Dirty, ranges: &[(u64, u64)], base: Option<Stamp>) -> Result<Brought> {
        let seen = source::stat_now(&*dirty.file)?;
        if seen.links == 0 && !dirty.is_written() {
            return Ok(Brought::NotNeeded);
        }
        if base != Some(seen.stamp) && !mutant("guest.write-back.writes-over-changes") {
            dirty.freeze(true);
            let kept = self.keep_beside(dirty, &seen);
            dirty.freeze(kept.is_ok());
            return kept.map(|()| Brought::Beside);
        }
        for (start, end) in ranges {
            fill::copy_range(&dirty.copy.file, &dirty.file, *start, *end)?;
        }
        Ok(Brought::Written)
    }

    /// Somebody else has changed a file since: what was written here gets a name of its own.
    fn keep_beside(&self, dirty: &Dirty, seen: &Attributes) -> Result<()> {
        let (folder, name) = &dirty.place;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let acting = dirty.caller.act();
        for number in 0..NAMES_MAX {
            let mut beside = name.clone();
            beside.push(format!(".conflict-{now}"));
            beside.push(if number > 0 { format!("-{number}") } else { String::new() });
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            let made = openat(folder, &beside, flags, Mode::from_raw_mode(u32::from(seen.mode)));
            let file = match made {
                Err(Errno::EXIST) => continue,
                made => File::from(made?),
            };
            drop(acting);
            let size = dirty.copy.file.metadata().map_err(errno)?.len();
            fill::copy_range(&dirty.copy.file, &file, 0, size)?;
            source::close(file)?;
            self.counters.conflicts.add(1);
            let path = self.nodes.path(&dirty.node).unwrap_or_else(|| name.as_bytes().into());
            eprintln!(
                "{}: changed at the source and here; what was written here is in {}",
                String::from_utf8_lossy(&path),
                beside.display()
            );
            return Ok(());
        }
        Err(Errno::EXIST)
    }

    /// Brings what has been dirty for long enough to the source, and what the policy wants to be
    /// clean.
    pub fn write_back_old(&self) {
        let wanted = self.copies.take_to_write_back();
        let Some(time_max) = self.write_back.time_max() else { return };
        for dirty in self.write_back.all() {
            let is_old = dirty.since().is_some_and(|since| since.elapsed() >= time_max);
            if is_old || wanted.contains(&dirty.node.identity) {
                let _asking = self.hearing.asks();
                let flushed = self.flush_dirty(&dirty);
                self.hearing.heard(&flushed);
                let _ = flushed.inspect_err(|error| dirty.failed(*error));
            }
        }
    }

    /// Brings everything to the source. Returns what it has refused.
    pub fn write_back_all(&self) -> Vec<(String, Errno)> {
        self.write_back.close();
        let mut refused = Vec::new();
        for dirty in self.write_back.all() {
            match self.settle(dirty.node.identity) {
                // A conflict was said when its file was made.
                Ok(()) | Err(Errno::STALE) => {}
                Err(error) => {
                    let path = self.nodes.path(&dirty.node).unwrap_or_default();
                    refused.push((String::from_utf8_lossy(&path).into_owned(), error));
                }
            }
        }
        refused
    }
}

/// What has become of bytes that were to be written to the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Brought {
    /// They are there.
    Written,
    /// The file is gone, and nobody has it open.
    NotNeeded,
    /// They are in a file of their own.
    Beside,
}
