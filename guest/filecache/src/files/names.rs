//! Names: looking them up, creating and removing them. All of it is done at the source, on behalf
//! of the caller.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, RenameFlags, linkat, mkdirat, mknodat, readlinkat, renameat_with,
    symlinkat, unlinkat,
};
use rustix::io::Result;

use crate::callers::Caller;
use crate::files::Files;
use crate::nodes::Node;
use crate::source;
use crate::stamp::Attributes;
use crate::write_back::Through;

/// A node, and its attributes for the kernel.
pub type Found = (Arc<Node>, Attributes);

/// A file to create, other than a regular one.
pub enum New {
    /// A folder.
    Folder(u32),
    /// A symbolic link with this target.
    Link(OsString),
    /// Any type, by its mode and device number.
    Node(u32, u32),
}

impl Files {
    /// Looks a name up.
    pub fn look_up(&self, folder: u64, name: &OsStr, caller: &Caller) -> Result<Found> {
        let acting = caller.act();
        let at = self.nodes.folder(folder)?;
        let seen = self.look_between_flushes(|| source::look(&at, name))?;
        drop(acting);
        Ok(self.found(&seen, folder, name))
    }

    /// Registers a file that was looked up, to be told to the kernel.
    pub(crate) fn found(&self, seen: &Attributes, folder: u64, name: &OsStr) -> Found {
        let node = self.nodes.found(seen, folder, name);
        self.learn(&node, seen);
        (node, self.shown(*seen))
    }

    /// Creates a file that is not a regular one.
    pub fn make(&self, folder: u64, name: &OsStr, what: &New, by: &Caller) -> Result<Found> {
        let acting = by.act();
        let at = self.nodes.folder(folder)?;
        match what {
            New::Folder(mode) => mkdirat(&at, name, Mode::from_raw_mode(*mode))?,
            New::Link(to) => symlinkat(&**to, &at, name)?,
            &New::Node(mode, device) => {
                let kind = FileType::from_raw_mode(mode);
                mknodat(&at, name, kind, Mode::from_raw_mode(mode), device.into())?;
            }
        }
        drop(acting);
        self.look_up(folder, name, by)
    }

    /// Removes a name.
    pub fn remove(&self, folder: u64, name: &OsStr, is_folder: bool, by: &Caller) -> Result<()> {
        let at = self.folder_for(folder, by)?;
        let flags = if is_folder { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        self.take_name(&at, name, by, || {
            let _acting = by.act();
            unlinkat(&at, name, flags)
        })?;
        self.nodes.gone(folder, name);
        Ok(())
    }

    /// Renames a file.
    pub fn rename(
        &self,
        from: (u64, &OsStr),
        to: (u64, &OsStr),
        flags: u32,
        by: &Caller,
    ) -> Result<()> {
        let (old, new) = (self.folder_for(from.0, by)?, self.folder_for(to.0, by)?);
        let flags = RenameFlags::from_bits_retain(flags);
        let _through = self.settle_name(&old, from.1, by)?;
        let _exchanged = match flags.contains(RenameFlags::EXCHANGE) {
            true => self.settle_name(&new, to.1, by)?,
            false => None,
        };
        self.take_name(&new, to.1, by, || {
            let _acting = by.act();
            renameat_with(&old, from.1, &new, to.1, flags)
        })?;
        self.nodes.gone(from.0, from.1);
        self.nodes.gone(to.0, to.1);
        self.moved(to.0, to.1, by);
        if flags.contains(RenameFlags::EXCHANGE) {
            self.moved(from.0, from.1, by);
        }
        Ok(())
    }

    /// Updates the places of the nodes of a renamed file.
    fn moved(&self, folder: u64, name: &OsStr, by: &Caller) {
        let _acting = by.act();
        let Ok(at) = self.nodes.folder(folder) else { return };
        let Ok(seen) = source::look(&at, name) else { return };
        self.nodes.moved(seen.identity, folder, name);
    }

    /// Makes a hard link.
    pub fn link(&self, id: u64, folder: u64, name: &OsStr, by: &Caller) -> Result<Found> {
        let node = self.nodes.get(id)?;
        let _through = self.settle(node.identity)?;
        let acting = by.act();
        let at = self.nodes.folder(folder)?;
        let anchor = self.nodes.anchor(&node)?;
        linkat(CWD, source::path_of(&anchor), &at, name, AtFlags::SYMLINK_FOLLOW)?;
        drop(acting);
        self.look_up(folder, name, by)
    }

    /// Returns the target of a symbolic link.
    pub fn read_link(&self, id: u64, by: &Caller) -> Result<OsString> {
        let node = self.nodes.get(id)?;
        let _acting = by.act();
        let anchor = self.nodes.anchor(&node)?;
        let to = readlinkat(anchor, c"", Vec::new())?;
        Ok(std::os::unix::ffi::OsStringExt::from_vec(to.into_bytes()))
    }

    /// Writes back the dirty bytes of a file, by its name. It is written through until the returned
    /// guard is dropped.
    fn settle_name(
        &self,
        folder: &OwnedFd,
        name: &OsStr,
        by: &Caller,
    ) -> Result<Option<Through<'_>>> {
        if !self.write_back.is_on() {
            return Ok(None);
        }
        let acting = by.act();
        let seen = source::look(folder, name);
        drop(acting);
        seen.map_or(Ok(None), |seen| self.settle(seen.identity))
    }

    /// Opens a folder on behalf of a caller: a server that squashes root denies it the folders of
    /// others.
    fn folder_for(&self, id: u64, by: &Caller) -> Result<Arc<OwnedFd>> {
        let _acting = by.act();
        self.nodes.folder(id)
    }
}
