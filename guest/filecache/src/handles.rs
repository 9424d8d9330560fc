//! Open files (handles).

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use rustix::fs::OFlags;
use rustix::io::{Errno, Result};

use crate::callers::Caller;
use crate::copy::Copy;
use crate::kernel::Backing;
use crate::nodes::{Node, Nodes};
use crate::open_mode::Mode;
use crate::source;
use crate::write_back::Dirty;

/// One open of a file.
pub struct Handle {
    /// The open node.
    pub node: Arc<Node>,
    /// Its mode.
    pub mode: Mode,
    /// The caller who opened it.
    pub caller: Caller,
    /// The flags for the daemon to open the file with, if it has to.
    pub flags: OFlags,
    /// A copy that was fresh at the open, to read from while it stays current.
    pub copy: Option<Arc<Copy>>,
    /// The state of write-back that its writes go to.
    pub dirty: Option<Arc<Dirty>>,
    /// Number of refusals by the source that this writer has been told of.
    pub told: AtomicU64,
    /// Keeps the kernel's registration until the kernel has closed the file.
    pub _backing: Option<Arc<Backing>>,
    /// The file is to be copied when it is closed.
    pub deserves_copy: bool,
    /// The anchor of the file.
    pub anchor: OnceLock<Arc<OwnedFd>>,
    /// The source's file, opened by the daemon.
    pub file: OnceLock<Arc<File>>,
    /// Owners that have locked it.
    pub lock_owners: Mutex<Vec<u64>>,
}

impl Handle {
    /// Returns the source's error for kept-back bytes, and marks it as reported.
    pub fn take_error(&self) -> Result<()> {
        self.dirty.as_ref().map_or(Ok(()), |dirty| dirty.take_error(&self.told))
    }

    /// Returns the same error, without marking it as reported.
    pub fn error(&self) -> Result<()> {
        self.dirty.as_ref().map_or(Ok(()), |dirty| dirty.error(&self.told))
    }

    /// Marks all refusals as reported, since the writer gets `error` as an answer.
    pub fn told(&self, error: Errno) -> Errno {
        let _ = self.take_error();
        error
    }

    /// Returns whether it was opened for writing.
    pub fn writes(&self) -> bool {
        self.flags.intersects(OFlags::WRONLY | OFlags::RDWR)
    }

    /// Returns the anchor of the file; looks it up now if it was opened without asking the source.
    pub fn anchor(&self, nodes: &Nodes) -> Result<Arc<OwnedFd>> {
        if let Some(anchor) = self.anchor.get() {
            return Ok(anchor.clone());
        }
        let anchor = Arc::new(nodes.anchor(&self.node)?);
        Ok(self.anchor.get_or_init(|| anchor).clone())
    }

    /// Returns the source's file; opened now, on behalf of the caller, if only the kernel has it
    /// open.
    pub fn file(&self, nodes: &Nodes) -> Result<Arc<File>> {
        if let Some(file) = self.file.get() {
            return Ok(file.clone());
        }
        let _acting = self.caller.act();
        let anchor = self.anchor(nodes)?;
        let file = Arc::new(source::reopen(anchor, self.flags)?);
        Ok(self.file.get_or_init(|| file).clone())
    }
}

/// Open objects, by the number passed to the kernel.
pub struct Numbered<T> {
    next: AtomicU64,
    table: RwLock<HashMap<u64, Arc<T>>>,
}

impl<T> Default for Numbered<T> {
    fn default() -> Self {
        Self { next: AtomicU64::new(1), table: RwLock::default() }
    }
}

impl<T> Numbered<T> {
    /// Adds an object and returns its number.
    pub fn insert(&self, thing: Arc<T>) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.table.write().unwrap_or_else(PoisonError::into_inner).insert(number, thing);
        number
    }

    /// Returns the object of a number.
    pub fn get(&self, number: u64) -> Result<Arc<T>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.get(&number).cloned().ok_or(Errno::BADF)
    }

    /// Removes the object of a number.
    pub fn remove(&self, number: u64) -> Option<Arc<T>> {
        self.table.write().unwrap_or_else(PoisonError::into_inner).remove(&number)
    }
}
