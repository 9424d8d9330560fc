//! Write-back (`--write-back`): writes that are kept back, and their way to the source.

use std::cell::OnceCell;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use flowstone_memory::mutated;
use rustix::fs::OFlags;
use rustix::io::{Errno, Result};

use super::open::Look;
use crate::callers::Caller;
use crate::errno;
use crate::files::Files;
use crate::handles::Handle;
use crate::lock::lock;
use crate::nodes::Node;
use crate::ranges::Ranges;
use crate::source;
use crate::stamp::{Attributes, Identity, Stamp};
use crate::write_back::{Dirty, Through};

impl Files {
    /// Truncates a file for an open. The kernel leaves it to the open if writes are kept back, so
    /// that the file is known to be empty then. Returns the source's file.
    pub(super) fn empty(&self, node: &Node, flags: OFlags, by: &Caller) -> Result<Arc<File>> {
        let file = OnceCell::new();
        self.change_at_source(node.identity, Some(0), || {
            let _acting = by.act();
            let anchor = self.nodes.anchor(node)?;
            let opened = source::reopen(anchor, source::daemon_flags(flags) | OFlags::TRUNC)?;
            let _ = file.set(Arc::new(opened));
            self.changes.one_more();
            Ok(())
        })?;
        self.copies.retire(node.identity);
        self.patch_open_copy(node.identity, 0, 0);
        file.into_inner().ok_or(Errno::IO)
    }

    /// Prepares write-back for an opening writer: opens the source's file on behalf of the writer,
    /// which compares it with the copy.
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

    /// Opens a file for writing with write-back. `file` is that of the source.
    fn open_to_write(
        &self,
        node: &Arc<Node>,
        caller: &Caller,
        file: &Arc<File>,
    ) -> Option<Arc<Dirty>> {
        if !self.bindings.suits_write_back(node) {
            return None;
        }
        let looking = self.write_back.looks(node.identity);
        let seen = source::stat(&**file).ok().filter(|seen| !seen.is_set_id())?;
        let (folder, name) = node.place();
        let place = (self.nodes.folder(folder).ok()?, name);
        self.write_back.open(node.identity, &looking, || {
            let copy = self.copies.copy_to_write(node.identity, &seen)?;
            let (node, caller, file) = (node.clone(), caller.clone(), file.clone());
            Some(Dirty::new(node, caller, place, copy, file, seen.stamp))
        })
    }

    /// Called when a writer has closed the file.
    pub(crate) fn close_to_write(&self, dirty: &Dirty) {
        if self.write_back.close_one(dirty) {
            let _flushing = lock(&dirty.flushing);
            self.end(dirty, false);
        }
    }

    /// Returns the attributes of a file for the kernel, including dirty changes.
    pub(crate) fn shown(&self, seen: Attributes) -> Attributes {
        self.write_back.of(seen.identity).map_or(seen, |dirty| dirty.shown(seen))
    }

    /// Returns whether the writes of a file are kept back.
    pub fn keeps_back(&self, id: u64) -> bool {
        let node = self.nodes.get(id).ok();
        node.is_some_and(|node| self.write_back.of(node.identity).is_some())
    }

    /// Writes into the copy of a dirty file; `None` if that is not possible without the source.
    pub fn write_here(&self, number: u64, offset: u64, from: &[u8]) -> Option<usize> {
        let handle = self.handles.get(number).ok()?;
        let dirty = handle.dirty.as_ref().filter(|_| handle.error().is_ok())?;
        self.write_to_copy(dirty, offset, from)
    }

    fn write_to_copy(&self, dirty: &Dirty, offset: u64, from: &[u8]) -> Option<usize> {
        let has_room = |more| self.copies.has_room(more);
        let written = self.write_back.write(dirty, offset, from, has_room)?;
        self.counters.written_bytes.add(written as u64);
        Some(written)
    }

    /// The same when there is no room: writes back older dirty files first. `None` if the write has
    /// to go to the source itself.
    pub(crate) fn write_after_others(
        &self,
        handle: &Handle,
        offset: u64,
        from: &[u8],
    ) -> Result<Option<usize>> {
        // A writer that opened the file before it was kept back writes to the source.
        let Some(dirty) = &handle.dirty else { return Ok(None) };
        handle.take_error()?;
        let fits = self.write_back.has_place_for(from.len()) && !dirty.has_ended();
        let others = if fits { self.write_back.all() } else { Vec::new() };
        for oldest in others {
            if let Some(written) = self.write_to_copy(dirty, offset, from) {
                return Ok(Some(written));
            }
            // Its own writer gets the error when it asks.
            let _ = self.flush_dirty(&oldest);
        }
        Ok(self.write_to_copy(dirty, offset, from))
    }

    /// Brings all dirty bytes of a file to the source before an operation there. The file is
    /// written through until the returned guard is dropped, at least.
    pub(crate) fn settle(&self, identity: Identity) -> Result<Option<Through<'_>>> {
        let through = self.write_back.writes_through(identity);
        let Some(dirty) = self.write_back.of(identity) else { return Ok(through) };
        self.flush_dirty(&dirty)?;
        let _flushing = lock(&dirty.flushing);
        // Few bytes were written since the first pass, and no more are accepted.
        dirty.freeze(true);
        let goes_on = mutated("guest.write-back.settles-in-one-pass", true, false);
        let flushed = if goes_on { self.flush_locked(&dirty) } else { Ok(()) };
        match flushed {
            Ok(()) => drop(self.end(&dirty, true)),
            Err(_) => dirty.freeze(self.write_back.of(identity).is_none()),
        }
        flushed.map(|()| through)
    }

    /// Returns the write-back state for another writer, after the source has just answered. A file
    /// that has been changed there, and not here, is no longer kept back.
    pub(super) fn kept_back(&self, node: &Node, seen: &Attributes) -> Result<Option<Arc<Dirty>>> {
        let Some(dirty) = self.write_back.of(node.identity) else { return Ok(None) };
        if dirty.is_dirty() || self.write_back.base(&dirty) == Some(seen.stamp) {
            return Ok(Some(dirty));
        }
        self.settle(node.identity)?;
        Ok(None)
    }

    /// Asks the source for attributes. Repeats the call if a dirty file was flushed meanwhile,
    /// since the answer may be older than that.
    pub(super) fn look_between_flushes(
        &self,
        look: impl Fn() -> Result<Attributes>,
    ) -> Result<Attributes> {
        let mut generation = self.write_back.generation();
        loop {
            let seen = look()?;
            let now = self.write_back.generation();
            let is_current = now == generation;
            let is_current = mutated("guest.write-back.believes-an-old-answer", is_current, true);
            if is_current {
                return Ok(self.shown(seen));
            }
            generation = now;
        }
    }

    /// Removes or replaces a name. The file that had it may be dirty, and remains the base of its
    /// copy.
    pub(super) fn take_name(
        &self,
        folder: &OwnedFd,
        name: &OsStr,
        by: &Caller,
        take: impl Fn() -> Result<()>,
    ) -> Result<()> {
        let acting = by.act();
        let seen = if self.write_back.is_on() { source::look(folder, name).ok() } else { None };
        drop(acting);
        let _through = seen.and_then(|seen| self.write_back.writes_through(seen.identity));
        let dirty = seen.and_then(|seen| self.write_back.of(seen.identity));
        let Some(dirty) = dirty else { return take() };
        let _flushing = lock(&dirty.flushing);
        let before = source::stat_now(&*dirty.file)?;
        take()?;
        // If the source cannot be asked now, the file is compared when it is written back.
        let Ok(after) = source::stat_now(&*dirty.file) else { return Ok(()) };
        if self.write_back.base(&dirty) == Some(before.stamp) {
            self.write_back.rebase(&dirty, after.stamp);
        }
        dirty.is_removed.store(after.links == 0, Ordering::Relaxed);
        Ok(())
    }

    /// Ends write-back of a file, if it is clean. The caller holds `flushing`.
    fn end(&self, dirty: &Dirty, must: bool) -> bool {
        let is_ended = self.write_back.end(dirty, must);
        if is_ended {
            // It may contain a foreign change within our clock tick; if wanted, it is made again.
            self.copies.retire(dirty.node.identity);
        }
        is_ended
    }

    /// Runs an operation at the source that may change the size of a file. A file with write-back
    /// is flushed before, and remains the base of its copy.
    pub(crate) fn change_at_source(
        &self,
        identity: Identity,
        size: Option<u64>,
        work: impl Fn() -> Result<()>,
    ) -> Result<()> {
        let _through = self.write_back.writes_through(identity);
        let Some(dirty) = self.write_back.of(identity) else { return work() };
        let flushing = lock(&dirty.flushing);
        if size != Some(0) {
            self.flush_locked(&dirty)?;
        }
        let more = size.map_or(0, |size| size.saturating_sub(dirty.copy.space()));
        let is_ours = self.write_back.base(&dirty) == Some(source::stat_now(&*dirty.file)?.stamp);
        if !is_ours || !self.copies.has_room(more) {
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

    /// Writes the dirty bytes of a file to the source.
    pub(crate) fn flush_dirty(&self, dirty: &Dirty) -> Result<()> {
        let _flushing = lock(&dirty.flushing);
        self.flush_locked(dirty)
    }

    /// The same with `flushing` held. Whichever call causes the flush, refusals are reported to the
    /// writers: a `chmod` that failed with a conflict (ESTALE) would be retried by the kernel.
    fn flush_locked(&self, dirty: &Dirty) -> Result<()> {
        let Some((ranges, base)) = self.write_back.begin_flush(dirty) else { return Ok(()) };
        let mut is_tried = false;
        let result = self.bring(dirty, &ranges, base, &mut is_tried);
        let is_tried = mutated("guest.write-back.takes-what-failed-for-its-base", is_tried, true);
        // The server gets all bytes for this.
        let stamp_now = || source::stat_now(&*dirty.file).ok().map(|it| it.stamp);
        let base = if is_tried { stamp_now() } else { base };
        let refused = match result {
            Ok(Brought::Beside) => Some(Errno::STALE),
            result => result.err(),
        };
        // Before a sync finds nothing left to do.
        refused.iter().for_each(|error| dirty.failed(*error));
        self.write_back.end_flush(dirty, result == Ok(Brought::Written), base);
        let is_beside = result == Ok(Brought::Beside);
        if is_beside || result == Ok(Brought::NotNeeded) {
            self.write_back.forget_bytes(dirty);
        }
        if result.is_ok() {
            // Also if its last writer has already closed it.
            self.end(dirty, is_beside);
        }
        if is_beside {
            self.take_back_attributes(&dirty.node);
        }
        refused.map_or(Ok(()), Err)
    }

    /// Flushes the file of an open writer, and reports, once, an error since its last report: also
    /// one from another call that this one waited for.
    pub(crate) fn sync_handle(&self, handle: &Handle) -> Result<()> {
        let flushed = self.flush_handle(handle);
        let hears = mutated("guest.write-back.a-sync-hears-nothing-of-others", true, false);
        let said = if hears { handle.take_error() } else { Ok(()) };
        flushed.and(said)
    }

    /// The same at the close of a descriptor, without consuming the error: a process that executes
    /// another program closes its duplicates of its parent's descriptors.
    pub(crate) fn close_handle(&self, handle: &Handle) -> Result<()> {
        let flushed = self.flush_handle(handle);
        let leaves = mutated("guest.write-back.a-close-takes-the-error", true, false);
        let said = if leaves { handle.error() } else { handle.take_error() };
        flushed.and(said)
    }

    fn flush_handle(&self, handle: &Handle) -> Result<()> {
        let syncs_all = mutated("guest.write-back.syncs-its-own-open-only", true, false);
        // Also a state that other writers have made dirty, or that was ended and started again.
        let all = || self.write_back.of(handle.node.identity);
        let dirty = if syncs_all { all() } else { handle.dirty.clone() };
        dirty.map_or(Ok(()), |dirty| self.flush_dirty(&dirty))
    }

    fn bring(
        &self,
        dirty: &Dirty,
        ranges: &Ranges,
        base: Option<Stamp>,
        is_tried: &mut bool,
    ) -> Result<Brought> {
        let seen = match source::stat_now(&*dirty.file) {
            // It was removed at a server by others.
            Err(Errno::STALE) => None,
            seen => Some(seen?),
        };
        let has_links = seen.is_some_and(|it| it.links > 0);
        let is_removed = !has_links && dirty.is_removed.load(Ordering::Relaxed);
        let is_open = self.bindings.is_open(dirty.node.identity);
        let is_open = mutated("guest.write-back.forgets-what-is-open", is_open, false);
        if is_removed && !is_open {
            return Ok(Brought::NotNeeded);
        }
        let stamp = seen.map(|it| it.stamp);
        let is_changed = stamp.is_none() || base != stamp && !is_removed;
        let is_changed = mutated("guest.write-back.writes-over-changes", is_changed, false);
        if is_changed {
            dirty.freeze(true);
            let kept = self.keep_beside(dirty, seen.map_or(0o600, |it| it.mode));
            dirty.freeze(kept.is_ok());
            return kept.map(|()| Brought::Beside);
        }
        *is_tried = true;
        for range in ranges.iter() {
            self.copy_to_source(&dirty.copy.file, &dirty.file, range)?;
        }
        Ok(Brought::Written)
    }

    /// Writes back the files that have been dirty for long enough, and those that the policy has
    /// dropped.
    pub fn write_back_old(&self) {
        let wanted = self.copies.take_to_write_back();
        let Some(time_max) = self.write_back.time_max() else { return };
        for dirty in self.write_back.all() {
            let is_old = dirty.since().is_some_and(|since| since.elapsed() >= time_max);
            if is_old || wanted.contains(&dirty.node.identity) {
                let _asking = self.hearing.asks();
                self.hearing.heard(&self.flush_dirty(&dirty));
            }
        }
    }

    /// Writes back all files. Returns the refused ones.
    pub fn write_back_all(&self) -> Vec<(String, Errno)> {
        self.write_back.close();
        let mut refused = Vec::new();
        for dirty in self.write_back.everything() {
            let settled = self.settle(dirty.node.identity);
            // A conflict is resolved, and was logged when its file was made.
            let is_over = self.write_back.of(dirty.node.identity).is_none();
            if let Some(error) = settled.err().filter(|_| !is_over) {
                let path = self.nodes.path(&dirty.node).unwrap_or_default();
                refused.push((String::from_utf8_lossy(&path).into_owned(), error));
            }
        }
        refused
    }
}

/// The result of writing bytes to the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Brought {
    /// They are at the source.
    Written,
    /// The file is gone, and has no opens.
    NotNeeded,
    /// They are in a new file beside it.
    Beside,
}
