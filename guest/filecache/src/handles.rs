//! What is open.

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
    /// What is open.
    pub node: Arc<Node>,
    /// How.
    pub mode: Mode,
    /// For whom.
    pub caller: Caller,
    /// With which flags the daemon opens the file, if it has to.
    pub flags: OFlags,
    /// A copy that was fresh at the open, to read from while it stays current.
    pub copy: Option<Arc<Copy>>,
    /// What its writes are kept back in.
    pub dirty: Option<Arc<Dirty>>,
    /// Refusals of the source of which this writer was told.
    pub told: AtomicU64,
    /// Keeps the registration until the kernel has closed the file.
    pub _backing: Option<Arc<Backing>>,
    /// Whether the file is to be copied when it is closed.
    pub deserves_copy: bool,
    /// The file, held.
    pub anchor: OnceLock<Arc<OwnedFd>>,
    /// The source's file as the daemon has opened it.
    pub file: OnceLock<Arc<File>>,
    /// Who has locked it.
    pub lock_owners: Mutex<Vec<u64>>,
}

impl Handle {
    /// What the source has said to bytes that were kept back, once.
    pub fn take_error(&self) -> Result<()> {
        self.dirty.as_ref().map_or(Ok(()), |dirty| dirty.take_error(&self.told))
    }

    /// The same, which is not yet said by that.
    pub fn error(&self) -> Result<()> {
        self.dirty.as_ref().map_or(Ok(()), |dirty| dirty.error(&self.told))
    }

    /// The writer is told of a refusal by the answer, and so of no other before it.
    pub fn told(&self, error: Errno) -> Errno {
        let _ = self.take_error();
        error
    }

    /// Returns whether it was opened for writing.
    pub fn writes(&self) -> bool {
        self.flags.intersects(OFlags::WRONLY | OFlags::RDWR)
    }

    /// The file, held; looked up now if it was opened without a look at the source.
    pub fn anchor(&self, nodes: &Nodes) -> Result<Arc<OwnedFd>> {
        if let Some(anchor) = self.anchor.get() {
            return Ok(anchor.clone());
        }
        let anchor = Arc::new(nodes.anchor(&self.node)?);
        Ok(self.anchor.get_or_init(|| anchor).clone())
    }

    /// The source's file; opened now, for the caller, if only the kernel has opened it so far.
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

/// Things that are open, by the number that the kernel is given.
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
    /// One more.
    pub fn insert(&self, thing: Arc<T>) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.table.write().unwrap_or_else(PoisonError::into_inner).insert(number, thing);
        number
    }

    /// The one of a number.
    pub fn get(&self, number: u64) -> Result<Arc<T>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.get(&number).cloned().ok_or(Errno::BADF)
    }

    /// The one of a number, which is closed.
    pub fn remove(&self, number: u64) -> Option<Arc<T>> {
        self.table.write().unwrap_or_else(PoisonError::into_inner).remove(&number)
    }
}
