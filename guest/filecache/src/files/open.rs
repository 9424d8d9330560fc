//! Opening and closing files.
//!
//! An open asks the source first: which file has the name now, and what is its stamp? A copy is
//! compared by opening the source's file, which is how NFS says whether it has changed (no call to
//! the server under a delegation). In mode Source only the kernel opens it: the daemon holds an
//! anchor, which opens nothing.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use flowstone_memory::mutant;
use flowstone_policy::Use;
use rustix::fs::{Access, AtFlags, CWD, Mode as Permissions, OFlags, accessat, openat};
use rustix::io::{Errno, Result};

use crate::bindings::{Bound, Opening, Prepared};
use crate::callers::Caller;
use crate::copy::Copy;
use crate::files::Files;
use crate::handles::Handle;
use crate::kernel::Backing;
use crate::nodes::{News, Node};
use crate::open_mode::Mode;
use crate::source;
use crate::stamp::{Attributes, Stamp};

/// The kernel's mark of an open for `execve`.
const FOR_EXECUTION: OFlags = OFlags::from_bits_retain(0x20);

/// Registers a file with the kernel, as the one behind a node.
pub type Register<'a> = &'a dyn Fn(BorrowedFd<'_>) -> std::io::Result<Backing>;

/// An open file, for the answer to the kernel.
pub struct Opened {
    /// Its number.
    pub number: u64,
    /// How it is open.
    pub mode: Mode,
    /// The kernel's hold on the file behind it.
    pub backing: Option<Arc<Backing>>,
    /// Whether pages that the kernel has are those of the file.
    pub keeps_pages: bool,
    /// Whether the source was not asked.
    pub is_unchecked: bool,
}

/// How a node is bound, the kernel's hold on the file behind it, and the file as the daemon has it.
type Ways = (Mode, Option<Arc<Backing>>, Option<Arc<File>>);

/// What is known of a file when it is opened.
pub struct Look {
    stamp: Stamp,
    /// A write may take the set-user-id bit away.
    is_set_id: bool,
    /// The file, held.
    pub anchor: Option<Arc<OwnedFd>>,
    /// The source's file, as the caller has opened it.
    pub file: Option<Arc<File>>,
    /// A fresh copy, or the one in which its writes are kept back.
    pub copy: Option<Arc<Copy>>,
    /// Whether this open has made it, at a server.
    is_new: bool,
    news: News,
}

impl Look {
    /// Of a copy, which is taken at its word.
    fn unchecked(copy: Arc<Copy>) -> Option<Self> {
        let news = News { changed: false, pages_are_good: false, is_settled: true };
        let dirty = || copy.attributes().filter(|_| copy.is_dirty()).map(|seen| seen.stamp);
        let stamp = copy.stamp().or_else(dirty)?;
        let (is_set_id, is_new) = (false, false);
        Some(Self { stamp, is_set_id, anchor: None, file: None, copy: Some(copy), is_new, news })
    }
}

impl Files {
    /// Opens a file that the kernel knows.
    pub fn open(&self, id: u64, flags: OFlags, caller: Caller, to: Register<'_>) -> Result<Opened> {
        let _asks = self.memory.asks();
        let node = self.nodes.get(id)?;
        let writes = writes(flags);
        let emptied = match flags.contains(OFlags::TRUNC) {
            true => Some(self.empty(&node, flags, &caller)?),
            false => None,
        };
        let mut look = match self.trusted(&node, writes) {
            Some(look) => {
                self.counters.unchecked_opens.add(1);
                look
            }
            None => self.look_at(&node, flags, writes, &caller)?,
        };
        look.file = look.file.or(emptied);
        self.finish(node, flags, caller, look, to)
    }

    /// Makes a file and opens it.
    pub fn create(
        &self,
        folder: u64,
        name: &OsStr,
        flags: OFlags,
        permissions: u32,
        caller: Caller,
        to: Register<'_>,
    ) -> Result<(Arc<Node>, Attributes, Opened)> {
        let _asks = self.memory.asks();
        let acting = caller.act();
        let at = self.nodes.folder(folder)?;
        let kept = OFlags::CREATE | (flags & (OFlags::EXCL | OFlags::TRUNC));
        let own = source::daemon_flags(flags) | kept | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(openat(&at, name, own, Permissions::from_raw_mode(permissions))?);
        drop(acting);
        self.changes.one_more();
        let seen = source::stat(&file)?;
        let node = self.nodes.found(&seen, folder, name);
        let news = self.learn(&node, &seen);
        let anchor = Some(Arc::new(source::reopen(&file, OFlags::PATH)?.into()));
        let file = Some(Arc::new(file));
        let is_set_id = seen.is_set_id();
        let is_new = !self.source.is_local();
        let look = Look { stamp: seen.stamp, is_set_id, anchor, file, copy: None, is_new, news };
        match self.finish(node.clone(), flags, caller, look, to) {
            Ok(opened) => Ok((node, self.shown(seen), opened)),
            Err(error) => {
                self.nodes.forget(node.id, 1);
                Err(error)
            }
        }
    }

    /// A copy that was compared with the source so short a time ago that the user takes its word.
    fn trusted(&self, node: &Node, writes: bool) -> Option<Look> {
        if self.trust.is_zero() || writes {
            return None;
        }
        let copy = self.copies.get(node.identity)?;
        let is_near = copy.was_checked_within(self.trust) || mutant("guest.open.trusts-for-ever");
        is_near.then(|| Look::unchecked(copy)).flatten()
    }

    /// Opens a file for reading without asking the source. Nothing if there is no copy that has
    /// been compared with it in this life.
    pub fn open_unasked(
        &self,
        id: u64,
        flags: OFlags,
        caller: &Caller,
        to: Register<'_>,
    ) -> Option<Result<Opened>> {
        let node = self.nodes.get(id).ok().filter(|_| !writes(flags))?;
        let copy = self.copies.get(node.identity).filter(|copy| {
            copy.attributes().is_some() || mutant("guest.trouble.opens-what-was-not-compared")
        })?;
        let opened = self.finish(node, flags, caller.clone(), Look::unchecked(copy)?, to);
        self.counters.unchecked_opens.add(opened.is_ok().into());
        Some(opened)
    }

    /// Asks the source.
    fn look_at(&self, node: &Arc<Node>, flags: OFlags, writes: bool, by: &Caller) -> Result<Look> {
        let changes = self.changes.so_far();
        let acting = by.act();
        let anchor = self.nodes.anchor(node)?;
        let has_copy = !writes && self.copies.get(node.identity).is_some();
        let (file, seen) = if has_copy && !self.source.is_local() {
            // This is how a server says whether a file has changed.
            let file = source::reopen(&anchor, source::daemon_flags(flags))?;
            let seen = self.look_between_flushes(|| source::stat(&file))?;
            (Some(Arc::new(file)), seen)
        } else {
            may_open(&anchor, flags, by)?;
            (None, self.look_between_flushes(|| source::stat(&anchor))?)
        };
        drop(acting);
        if !seen.is_file() {
            return Err(Errno::STALE);
        }
        let news = self.learn(node, &seen);
        // What an anchor says of a file on a server may be seconds old; the kernel's own open
        // brings what is new.
        let is_old = news.changed && !mutant("guest.open.leaves-old-attributes");
        if is_old || (file.is_none() && !self.source.is_local()) {
            self.take_back_attributes(node);
        }
        let is_fresh =
            |it: &Arc<Copy>| it.is_of(seen.stamp) || mutant("guest.open.skips-comparison");
        let copy = match self.kept_back(node, &seen)? {
            Some(dirty) => Some(dirty.copy.clone()),
            None => self.copies.get(node.identity).filter(is_fresh),
        };
        copy.iter().for_each(|it| it.checked(&seen, Some(changes)));
        let (is_set_id, anchor) = (seen.is_set_id(), Some(Arc::new(anchor)));
        Ok(Look { stamp: seen.stamp, is_set_id, anchor, file, copy, is_new: false, news })
    }

    /// Tells the policy, and binds the node.
    fn finish(
        &self,
        node: Arc<Node>,
        flags: OFlags,
        caller: Caller,
        mut look: Look,
        to: Register<'_>,
    ) -> Result<Opened> {
        let writes = flags.intersects(OFlags::WRONLY | OFlags::RDWR);
        let dirty = if writes { self.keep_back(&node, flags, &caller, &mut look) } else { None };
        if writes {
            self.copies.writer_opens(node.identity);
        }
        let is_hit = look.copy.is_some();
        let is_unchecked = look.anchor.is_none();
        let bound = self.bind(&node, writes, flags, &caller, &look, to);
        let is_plain = bound.as_ref().is_ok_and(|(mode, ..)| *mode == Mode::Plain);
        let dirty = match dirty {
            Some(dirty) if !is_plain => {
                self.close_to_write(&dirty);
                None
            }
            dirty => dirty,
        };
        let (mode, backing, file) = match bound {
            Ok(bound) => bound,
            Err(error) => {
                if writes {
                    self.copies.writer_closes(node.identity);
                }
                return Err(error);
            }
        };
        let is_hit = is_hit && mode != Mode::Source && mode != Mode::Direct;
        let deserves_copy = self.note_use(&node, writes, look.stamp.size, is_hit);
        self.counters.opened(mode);
        let keeps_pages = mode == Mode::Plain && look.news.pages_are_good;
        node.pages(mode == Mode::Plain && look.news.is_settled);
        let handle = Handle {
            node,
            mode,
            caller,
            flags: source::daemon_flags(flags),
            copy: look.copy.filter(|_| mode == Mode::Plain),
            told: dirty.as_ref().map(|it| it.refusals()).unwrap_or_default(),
            dirty,
            _backing: backing.clone(),
            deserves_copy,
            anchor: look.anchor.map(Into::into).unwrap_or_default(),
            file: file.map(Into::into).unwrap_or_default(),
            lock_owners: Mutex::default(),
        };
        let number = self.handles.insert(Arc::new(handle));
        Ok(Opened { number, mode, backing, keeps_pages, is_unchecked })
    }

    /// Counts a use. Returns whether the file is to be copied.
    fn note_use(&self, node: &Node, writes: bool, bytes: u64, is_hit: bool) -> bool {
        let usage = if writes { Use::Write } else { Use::Read };
        self.recorders.used(self.copies.id(node.identity), usage, bytes);
        if !writes {
            self.counters.read_opened(is_hit, bytes);
        }
        self.remember(node);
        self.copies.used(node.identity, usage, bytes)
    }

    /// Binds a node, with what that takes.
    fn bind(
        &self,
        node: &Arc<Node>,
        writes: bool,
        flags: OFlags,
        caller: &Caller,
        look: &Look,
        to: Register<'_>,
    ) -> Result<Ways> {
        let mut has = Prepared {
            copy: look.copy.clone(),
            backing: None,
            file: look.file.clone(),
            anchor: look.anchor.clone(),
        };
        loop {
            let is_split = self.nodes.is_split(node);
            let (is_set_id, allowed) = (look.is_set_id, self.modes());
            let is_kept_back = self.write_back.of(node.identity).is_some();
            let is_new = look.is_new;
            let opening = Opening {
                node,
                is_split,
                writes,
                is_set_id,
                is_kept_back,
                is_new,
                caller,
                allowed,
            };
            match self.bindings.bind(&opening, &mut has) {
                Bound::As(mode, backing) => {
                    if mode == Mode::Direct {
                        self.nodes.arrived(node.identity);
                    }
                    return Ok((mode, backing, has.file));
                }
                Bound::Elsewhere => {
                    self.nodes.split(node.identity);
                    return Err(Errno::STALE);
                }
                Bound::Needs(Mode::Copy) => self.register_copy(&has, to),
                Bound::Needs(Mode::Source) => {
                    has.backing = self.register_source(flags, caller, look, to)?;
                }
                Bound::Needs(Mode::Plain | Mode::Direct) => {
                    let anchor = look.anchor.as_ref().ok_or(Errno::STALE)?;
                    let _acting = caller.act();
                    let file = source::reopen(anchor, source::daemon_flags(flags))?;
                    has.file = Some(Arc::new(file));
                }
            }
        }
    }

    /// Registers a copy, as the daemon's own file.
    fn register_copy(&self, has: &Prepared, to: Register<'_>) {
        let Some(copy) = &has.copy else { return };
        match to(copy.file.as_fd()) {
            // Another thread may have been faster; either will do.
            Ok(backing) => drop(copy.backing.set(Arc::new(backing))),
            Err(_) => self.kernel_passes_through(false),
        }
    }

    /// Registers the source's file for a caller: by its anchor, or, in older kernels, by opening
    /// it. Where that is not allowed, no node is bound to a file any more.
    fn register_source(
        &self,
        flags: OFlags,
        caller: &Caller,
        look: &Look,
        to: Register<'_>,
    ) -> Result<Option<Arc<Backing>>> {
        let _acting = caller.act();
        let held = look.anchor.as_ref().map(|it| to(it.as_fd()));
        if let Some(Ok(backing)) = held {
            return Ok(Some(Arc::new(backing)));
        }
        let file = match (&look.file, &look.anchor) {
            (Some(file), _) => file.clone(),
            (None, Some(anchor)) => Arc::new(source::reopen(anchor, source::daemon_flags(flags))?),
            (None, None) => return Err(Errno::STALE),
        };
        let backing = to(file.as_fd());
        if backing.is_err() {
            self.kernel_passes_through(false);
        }
        Ok(backing.ok().map(Arc::new))
    }

    /// The kernel has closed a file.
    pub fn release(&self, number: u64) {
        let Some(handle) = self.handles.remove(number) else { return };
        // Owners that are open files, not processes, end with it.
        for owner in handle.lock_owners.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            self.locks.release(handle.node.identity, owner);
        }
        if self.bindings.unbind(&handle) {
            self.nodes.join(handle.node.identity);
        }
        if let Some(dirty) = &handle.dirty {
            self.close_to_write(dirty);
        }
        if handle.writes() {
            self.copies.writer_closes(handle.node.identity);
        }
        if handle.deserves_copy && self.copies.wants(handle.node.identity) {
            self.fills.add(handle.node.clone(), handle.caller.clone());
        }
    }
}

/// Returns whether an open may change the file.
fn writes(flags: OFlags) -> bool {
    flags.intersects(OFlags::WRONLY | OFlags::RDWR | OFlags::TRUNC)
}

/// Returns whether a caller may open a file, as the source says. (The superuser is judged by the
/// server, at the kernel's open.)
fn may_open(anchor: &OwnedFd, flags: OFlags, caller: &Caller) -> Result<()> {
    if caller.uid == 0 {
        return Ok(());
    }
    let access = match flags & OFlags::RWMODE {
        OFlags::WRONLY => Access::WRITE_OK,
        OFlags::RDWR => Access::READ_OK | Access::WRITE_OK,
        _ if flags.contains(FOR_EXECUTION) => Access::EXEC_OK,
        _ => Access::READ_OK,
    };
    accessat(CWD, source::path_of(anchor), access, AtFlags::EACCESS)
}
