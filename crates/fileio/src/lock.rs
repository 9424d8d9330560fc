//! Locks of images against a second writer: open-file-description locks, as QEMU sets and honours.
//!
//! A lock belongs to the open file description, not to the process: it is released with the last
//! user of the description, however that ends. QEMU sets read locks on single bytes for the
//! permissions that it uses (from byte 100) and does not share (from byte 200); our writers lock
//! the whole file and so conflict with all of them. Our readers lock QEMU's byte for "shares no
//! write", and check whether there is a writer.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use flowstone_block::{Error, Result};

/// Advice for an image that another process uses.
pub const IN_USE: &str = "stop that process, or talk to it through its --control socket";

/// The kind of access that a file is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read it, even while another process writes it. Takes no lock.
    Inspect,
    /// Read it; no other process may write it meanwhile.
    Read,
    /// Read and write it; no other process may use it meanwhile.
    Write,
}

/// A range of bytes to lock; the file need not have them.
struct Bytes {
    start: i64,
    /// Number of bytes; 0 means up to the end of the file, even if it grows.
    count: i64,
}

const ALL: Bytes = Bytes { start: 0, count: 0 };
/// Bytes that our readers lock to exclude our writers: all below QEMU's bytes.
const OURS: Bytes = Bytes { start: 0, count: 100 };
/// Locked by QEMU while it may write.
const QEMU_WRITES: Bytes = Bytes { start: 101, count: 1 };
/// Locked by QEMU while it shares no write permission.
const QEMU_NO_WRITERS: Bytes = Bytes { start: 201, count: 1 };

/// Locks `file` for as long as its description is open, as `access` to it needs; `name` is for the
/// error message.
pub fn lock(file: BorrowedFd<'_>, access: Access, name: &str) -> Result<()> {
    let locked = match access {
        Access::Inspect => Ok(()),
        Access::Write => set(file, libc::F_WRLCK, ALL),
        Access::Read => set(file, libc::F_RDLCK, OURS)
            .and_then(|()| set(file, libc::F_RDLCK, QEMU_NO_WRITERS))
            .and_then(|()| refuse_if_locked(file, QEMU_WRITES)),
    };
    locked.map_err(|error| match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => {
            Error::busy(name, "another process is using this image", IN_USE)
        }
        _ => Error::host(
            format!("lock {name}"),
            error,
            "keep the image on a file system that supports file locks",
        ),
    })
}

/// Releases all locks of the description, although others may still hold it open.
pub fn unlock(file: BorrowedFd<'_>) {
    // Failure is ignored: the lock ends with the description at the latest.
    let _ = set(file, libc::F_UNLCK, ALL);
}

fn set(file: BorrowedFd<'_>, kind: i32, bytes: Bytes) -> io::Result<()> {
    call(file, libc::F_OFD_SETLK, &mut description(kind, bytes))
}

fn refuse_if_locked(file: BorrowedFd<'_>, bytes: Bytes) -> io::Result<()> {
    let mut lock = description(libc::F_WRLCK, bytes);
    call(file, libc::F_OFD_GETLK, &mut lock)?;
    let free = lock.l_type == libc::F_UNLCK as libc::c_short;
    if free { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EAGAIN)) }
}

fn description(kind: i32, bytes: Bytes) -> libc::flock {
    // SAFETY: `flock` is plain data, for which zeroes are a valid value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = bytes.start;
    lock.l_len = bytes.count;
    lock
}

fn call(file: BorrowedFd<'_>, command: i32, lock: &mut libc::flock) -> io::Result<()> {
    // SAFETY: the descriptor is open, and `lock` lives across the call.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, lock) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
