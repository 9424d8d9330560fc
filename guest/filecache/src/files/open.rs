//! Opening and closing files.
//!
//! An open asks the source first for the file that has the name now, and for its stamp. A copy is
//! compared by opening the source's file, which is how NFS checks for changes (no call to the
//! server under a delegation). In mode Source only the kernel opens it: the daemon holds an anchor,
//! which opens nothing.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use flowstone_memory::mutated;
use flowstone_policy::Use;
use rustix::fs::{Access, AtFlags, CWD, Mode as Permissions, OFlags, accessat, openat};
use rustix::io::{Errno, Result};

use crate::bindings::{Bound, Prepared};
use crate::callers::Caller;
use crate::copy::Copy;
use crate::files::Files;
use crate::handles::Handle;
use crate::kernel::Backing;
use crate::lock::lock;
use crate::nodes::{News, Node};
use crate::open_mode::{Ask, Mode};
use crate::source;
use crate::stamp::{Attributes, Stamp};

/// The kernel's flag of an open for `execve`.
const FOR_EXECUTION: OFlags = OFlags::from_bits_retain(0x20);

/// Registers a file with the kernel as the backing file of a node.
pub type Register<'a> = &'a dyn Fn(BorrowedFd<'_>) -> std::io::Result<Backing>;

/// The result of an open, for the reply to the kernel.
pub struct Opened {
    /// Its handle number.
    pub number: u64,
    /// Its mode.
    pub mode: Mode,
    /// The kernel's registration of the backing file.
    pub backing: Option<Arc<Backing>>,
    /// The kernel's cached pages are those of the file.
    pub keeps_pages: bool,
    /// The source was not asked.
    pub is_unchecked: bool,
}

/// The mode of a binding, the kernel's registration of the backing file, and the daemon's file.
type Ways = (Mode, Option<Arc<Backing>>, Option<Arc<File>>);

/// The state of a file at its open.
pub struct Look {
    stamp: Stamp,
    /// The file has the set-user-id or set-group-id bit, which a write may clear.
    is_set_id: bool,
    /// The anchor of the file.
    pub anchor: Option<Arc<OwnedFd>>,
    /// The source's file, as the caller has opened it.
    pub file: Option<Arc<File>>,
    /// A fresh copy, or the one that its writes are kept back in.
    pub copy: Option<Arc<Copy>>,
    /// This open has created it, at a server.
    is_new: bool,
    news: News,
}

impl Look {
    /// Makes the look of a copy that is trusted without asking the source.
    fn unchecked(copy: Arc<Copy>) -> Option<Self> {
        let news = News { changed: false, pages_are_good: false, is_settled: true };
        let dirty = || copy.attributes().filter(|_| copy.is_dirty()).map(|seen| seen.stamp);
        let stamp = copy.stamp().or_else(dirty)?;
        let (is_set_id, is_new) = (false, false);
        Some(Self { stamp, is_set_id, anchor: None, file: None, copy: Some(copy), is_new, news })
    }
}

impl Files {
    /// Opens a file by its node.
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

    /// Creates a file and opens it.
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

    /// Returns a look by a copy that was compared with the source within the user's trust period.
    fn trusted(&self, node: &Node, writes: bool) -> Option<Look> {
        if self.trust.is_zero() || writes {
            return None;
        }
        let copy = self.copies.get(node.identity)?;
        let is_near = copy.was_checked_within(self.trust);
        let is_near = mutated("guest.open.trusts-for-ever", is_near, true);
        is_near.then(|| Look::unchecked(copy)).flatten()
    }

    /// Opens a file for reading without asking the source. `None` if there is no copy that was
    /// compared with it in this life.
    pub fn open_unasked(
        &self,
        id: u64,
        flags: OFlags,
        caller: &Caller,
        to: Register<'_>,
    ) -> Option<Result<Opened>> {
        let node = self.nodes.get(id).ok().filter(|_| !writes(flags))?;
        let copy = self.copies.get(node.identity).filter(|copy| {
            let is_compared = copy.attributes().is_some();
            mutated("guest.trouble.opens-what-was-not-compared", is_compared, true)
        })?;
        let opened = self.finish(node, flags, caller.clone(), Look::unchecked(copy)?, to);
        self.counters.unchecked_opens.add(opened.is_ok().into());
        Some(opened)
    }

    /// Asks the source for the state of a file.
    fn look_at(&self, node: &Arc<Node>, flags: OFlags, writes: bool, by: &Caller) -> Result<Look> {
        let changes = self.changes.so_far();
        let acting = by.act();
        let anchor = self.nodes.anchor(node)?;
        let has_copy = !writes && self.copies.get(node.identity).is_some();
        let (file, seen) = if has_copy && !self.source.is_local() {
            // The open makes a server report whether the file has changed.
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
        // The attributes of an anchor on a server may be seconds old; the kernel's own open updates
        // them.
        let is_old = mutated("guest.open.leaves-old-attributes", news.changed, false);
        if is_old || (file.is_none() && !self.source.is_local()) {
            self.take_back_attributes(node);
        }
        let is_fresh =
            |it: &Arc<Copy>| mutated("guest.open.skips-comparison", it.is_of(seen.stamp), true);
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

    /// Binds a node, and prepares what that needs.
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
            let ask = Ask {
                is_split: self.nodes.is_split(node),
                writes,
                is_kept_back: self.write_back.of(node.identity).is_some(),
                is_new: look.is_new,
                is_set_id: look.is_set_id,
                allowed: self.modes(),
                ..Ask::default()
            };
            match self.bindings.bind(node, caller, &ask, &mut has) {
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

    /// Registers a copy with the kernel, as the daemon's own file.
    fn register_copy(&self, has: &Prepared, to: Register<'_>) {
        let Some(copy) = &has.copy else { return };
        match to(copy.file.as_fd()) {
            // Another thread may have done so first; either registration is good.
            Ok(backing) => drop(copy.backing.set(Arc::new(backing))),
            Err(_) => self.kernel_passes_through(false),
        }
    }

    /// Registers the source's file for a caller: by its anchor, or, on older kernels, by opening
    /// it. If that is refused, passthrough is disabled for all nodes.
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

    /// Processes the kernel's last close of a file.
    pub fn release(&self, number: u64) {
        let Some(handle) = self.handles.remove(number) else { return };
        // Lock owners that are open files, not processes, end with it.
        for owner in lock(&handle.lock_owners).drain(..) {
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

/// Checks whether a caller may open a file, by asking the source. (The superuser is checked by the
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
