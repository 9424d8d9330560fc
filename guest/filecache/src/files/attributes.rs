//! Attributes: read from the source, and changed there on behalf of the caller.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{
    AtFlags, CWD, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags, chmodat, chownat,
    ftruncate, utimensat,
};
use rustix::io::Result;

use crate::callers::Caller;
use crate::files::Files;
use crate::nodes::Node;
use crate::source;
use crate::stamp::Attributes;

/// A change of attributes.
#[derive(Debug)]
pub struct Change {
    /// Permissions.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size.
    pub size: Option<u64>,
    /// Times of access and modification.
    pub times: Option<[Timespec; 2]>,
}

impl Files {
    /// Returns the attributes of a node: by its open file, if any, since its name may be gone.
    pub fn attributes(&self, id: u64, handle: Option<u64>, by: &Caller) -> Result<Attributes> {
        let node = self.nodes.get(id)?;
        let acting = by.act();
        let seen = match self.held(&node, handle) {
            Some(held) => self.look_between_flushes(|| source::stat(&held))?,
            // Opened on trust, and perhaps gone or replaced at the source since.
            None => self.nodes.look(&node).or_else(|error| {
                self.bindings.trusted_copy(&node).and_then(|copy| copy.attributes()).ok_or(error)
            })?,
        };
        drop(acting);
        let news = self.learn(&node, &seen);
        if news.changed {
            node.pages(false);
        }
        Ok(self.shown(seen))
    }

    /// Returns the file of a node, held by one of its opens.
    fn held(&self, node: &Node, handle: Option<u64>) -> Option<Arc<OwnedFd>> {
        let handle = handle.and_then(|number| self.handles.get(number).ok());
        handle.and_then(|it| it.anchor(&self.nodes).ok()).or_else(|| self.bindings.anchor(node))
    }

    /// Returns what holds the file, or else holds it.
    fn hold(&self, node: &Node, handle: Option<u64>) -> Result<Arc<OwnedFd>> {
        match self.held(node, handle) {
            Some(held) => Ok(held),
            None => self.nodes.anchor(node).map(Arc::new),
        }
    }

    /// Changes attributes.
    pub fn change(
        &self,
        id: u64,
        handle: Option<u64>,
        what: &Change,
        by: &Caller,
    ) -> Result<Attributes> {
        let node = self.nodes.get(id)?;
        let acting = by.act();
        let held = self.hold(&node, handle)?;
        drop(acting);
        let change = || self.change_held(&node, &held, handle, what, by);
        self.change_at_source(node.identity, what.size, change)?;
        let seen = source::stat(&held)?;
        if seen.is_set_id() {
            // A write clears the bit, and must do so at once.
            self.settle(node.identity)?;
        }
        self.learn(&node, &seen);
        Ok(self.shown(seen))
    }

    fn change_held(
        &self,
        node: &Node,
        held: &Arc<OwnedFd>,
        handle: Option<u64>,
        what: &Change,
        by: &Caller,
    ) -> Result<()> {
        if let Some(size) = what.size {
            self.resize(node, held, handle, size, by)?;
        }
        let _acting = by.act();
        let path = source::path_of(held);
        if what.uid.is_some() || what.gid.is_some() {
            let (uid, gid) = (what.uid.map(Uid::from_raw), what.gid.map(Gid::from_raw));
            // By descriptor: a change through the anchor's path would follow a symbolic link.
            chownat(held, c"", uid, gid, AtFlags::EMPTY_PATH)?;
        }
        if let Some(mode) = what.mode {
            chmodat(CWD, &path, Mode::from_raw_mode(mode), AtFlags::empty())?;
        }
        if let Some([last_access, last_modification]) = what.times {
            let times = Timestamps { last_access, last_modification };
            utimensat(CWD, &path, &times, AtFlags::empty())?;
        }
        Ok(())
    }

    fn resize(
        &self,
        node: &Node,
        held: &Arc<OwnedFd>,
        handle: Option<u64>,
        size: u64,
        by: &Caller,
    ) -> Result<()> {
        let open = handle.and_then(|number| self.handles.get(number).ok());
        match open.filter(|it| it.writes()) {
            Some(open) => {
                let file = open.file(&self.nodes)?;
                let _acting = by.act();
                ftruncate(&*file, size)?;
            }
            None => {
                let _acting = by.act();
                ftruncate(source::reopen(held, OFlags::WRONLY)?, size)?;
            }
        }
        self.copies.retire(node.identity);
        self.patch_open_copy(node.identity, size, 0);
        Ok(())
    }

    /// Reads an extended attribute.
    pub fn extended(&self, id: u64, name: &OsStr, into: &mut [u8], by: &Caller) -> Result<usize> {
        self.with_path(id, by, |path| rustix::fs::getxattr(path, name, into))
    }

    /// Lists the names of the extended attributes.
    pub fn extended_names(&self, id: u64, into: &mut [u8], by: &Caller) -> Result<usize> {
        self.with_path(id, by, |path| rustix::fs::listxattr(path, into))
    }

    /// Sets an extended attribute.
    pub fn set_extended(
        &self,
        id: u64,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        by: &Caller,
    ) -> Result<()> {
        let flags = XattrFlags::from_bits_retain(flags.cast_unsigned());
        let set = || self.with_path(id, by, |path| rustix::fs::setxattr(path, name, value, flags));
        self.change_at_source(self.nodes.get(id)?.identity, None, set)
    }

    /// Removes an extended attribute.
    pub fn remove_extended(&self, id: u64, name: &OsStr, by: &Caller) -> Result<()> {
        let remove = || self.with_path(id, by, |path| rustix::fs::removexattr(path, name));
        self.change_at_source(self.nodes.get(id)?.identity, None, remove)
    }

    fn with_path<T>(
        &self,
        id: u64,
        by: &Caller,
        work: impl FnOnce(&str) -> Result<T>,
    ) -> Result<T> {
        let node = self.nodes.get(id)?;
        let _acting = by.act();
        let held = self.hold(&node, None)?;
        work(&source::path_of(&held))
    }
}
