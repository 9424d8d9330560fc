//! File locks, passed on to the source. Each lock owner of a file gets a descriptor of its own
//! there, since locks of one process do not exclude each other.
//!
//! The kernel does not distinguish `flock` from a lock of all bytes (the library does not pass that
//! on), so such a lock is taken in both ways: it excludes processes that use either of them, as
//! with NFS, where both are one.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flowstone_memory::mutated;
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::{Errno, Result};

use crate::callers::is_interrupted;
use crate::errno;
use crate::files::Files;
use crate::handles::Handle;
use crate::lock::lock;
use crate::source;
use crate::stamp::Identity;

/// First and longest pause between two tries of a lock that others hold.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(100)];

/// A lock on a range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Its first byte.
    pub start: u64,
    /// Its last byte.
    pub end: u64,
    /// `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    pub kind: i32,
}

impl Range {
    fn is_whole(&self) -> bool {
        self.start == 0 && self.end >= i64::MAX.cast_unsigned()
    }

    fn for_system(&self) -> libc::flock {
        // SAFETY: zeroes are a lock of the system's type.
        let mut it: libc::flock = unsafe { std::mem::zeroed() };
        it.l_type = self.kind as libc::c_short;
        it.l_whence = libc::SEEK_SET as libc::c_short;
        it.l_start = self.start.cast_signed();
        let is_open = self.end >= i64::MAX.cast_unsigned();
        it.l_len = if is_open { 0 } else { (self.end - self.start + 1).cast_signed() };
        it
    }
}

/// The locks of a mount.
#[derive(Default)]
pub struct Locks {
    files: Mutex<HashMap<(Identity, u64), Arc<File>>>,
}

impl Locks {
    /// Releases the locks of an owner who has closed a file.
    pub fn release(&self, identity: Identity, owner: u64) {
        let file = lock(&self.files).remove(&(identity, owner));
        // Outside the lock: closes a file of the source, which may hang.
        drop(file);
    }

    /// Returns the descriptor of an owner, if it has locked something.
    pub fn of(&self, identity: Identity, owner: u64) -> Option<Arc<File>> {
        lock(&self.files).get(&(identity, owner)).cloned()
    }
}

impl Files {
    /// Returns the descriptor of an owner, opened if needed.
    fn lock_file(&self, handle: &Handle, owner: u64) -> Result<Arc<File>> {
        let identity = handle.node.identity;
        let mut owners = lock(&handle.lock_owners);
        if !owners.contains(&owner) {
            owners.push(owner);
        }
        drop(owners);
        if let Some(file) = self.locks.of(identity, owner) {
            return Ok(file);
        }
        let anchor = handle.anchor(&self.nodes)?;
        let acting = handle.caller.act();
        // An owner may have several opens; a descriptor for reading and writing serves all of them.
        let both = source::reopen(&*anchor, OFlags::RDWR);
        let file = both.or_else(|_| source::reopen(&*anchor, handle.flags & OFlags::RWMODE))?;
        drop(acting);
        let mut files = lock(&self.locks.files);
        Ok(files.entry((identity, owner)).or_insert_with(|| Arc::new(file)).clone())
    }

    /// Returns the lock that conflicts with `range`, if any.
    pub fn test_lock(&self, number: u64, owner: u64, range: Range) -> Result<(Range, u32)> {
        let handle = self.handles.get(number)?;
        let file = self.lock_file(&handle, owner)?;
        let mut it = range.for_system();
        control(&file, libc::F_OFD_GETLK, &mut it)?;
        let start = it.l_start.cast_unsigned();
        let end = if it.l_len == 0 {
            i64::MAX.cast_unsigned()
        } else {
            start + it.l_len.cast_unsigned() - 1
        };
        let pid = u32::try_from(it.l_pid).unwrap_or_default();
        Ok((Range { start, end, kind: it.l_type.into() }, pid))
    }

    /// Takes or releases a lock; fails if it would have to wait.
    pub fn try_lock(&self, number: u64, owner: u64, range: Range) -> Result<()> {
        let handle = self.handles.get(number)?;
        if range.kind == libc::F_UNLCK && self.locks.of(handle.node.identity, owner).is_none() {
            return Ok(());
        }
        self.settle(handle.node.identity)?;
        let file = self.lock_file(&handle, owner)?;
        let locks = mutated("guest.locks.stay-here", true, false);
        if !locks {
            return Ok(());
        }
        if !range.is_whole() {
            return control(&file, libc::F_OFD_SETLK, &mut range.for_system());
        }
        match control(&file, libc::F_OFD_SETLK, &mut range.for_system()) {
            // A file open for reading only can still be locked with `flock`.
            Err(Errno::BADF) => {}
            result => result?,
        }
        let operation = match range.kind {
            libc::F_UNLCK => FlockOperation::NonBlockingUnlock,
            libc::F_RDLCK => FlockOperation::NonBlockingLockShared,
            _ => FlockOperation::NonBlockingLockExclusive,
        };
        flock(&*file, operation).inspect_err(|_| {
            let unlocked = Range { kind: libc::F_UNLCK, ..range };
            let _ = control(&file, libc::F_OFD_SETLK, &mut unlocked.for_system());
        })
    }

    /// Waits for a lock until it is taken, or a signal is pending for the task.
    pub fn wait_for_lock(&self, number: u64, owner: u64, range: Range, task: u32) -> Result<()> {
        let [mut pause, pause_max] = PAUSES;
        loop {
            match self.try_lock(number, owner, range) {
                Err(Errno::AGAIN | Errno::ACCESS) => {}
                result => return result,
            }
            if is_interrupted(task) {
                return Err(Errno::INTR);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(pause_max);
        }
    }
}

fn control(file: &File, command: i32, lock: &mut libc::flock) -> Result<()> {
    // SAFETY: the command takes a pointer to a lock, which lives through the call.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), command, std::ptr::from_mut(lock)) };
    if result == 0 { Ok(()) } else { Err(errno(std::io::Error::last_os_error())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_becomes_what_the_system_takes() {
        let lock = Range { start: 10, end: 19, kind: libc::F_WRLCK }.for_system();
        assert_eq!((lock.l_start, lock.l_len), (10, 10));
        let whole = Range { start: 0, end: i64::MAX.cast_unsigned(), kind: libc::F_RDLCK };
        assert!(whole.is_whole());
        assert_eq!(whole.for_system().l_len, 0);
        assert!(!Range { start: 1, ..whole }.is_whole());
    }
}
