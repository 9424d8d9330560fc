//! One writer for an image: an open-file-description lock on the whole file.
//!
//! The lock belongs to the open file, not to the process: it goes away when the daemon dies,
//! however it dies, and it keeps out QEMU too, which locks single bytes of its images.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use flowstone_block::{Error, Result};

/// How others may use the file meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Nobody else may open it.
    Exclusive,
    /// Others may read it.
    Readers,
}

/// Locks `file` for as long as it stays open; `name` is for the message.
pub fn lock(file: BorrowedFd<'_>, sharing: Sharing, name: &str) -> Result<()> {
    let kind = match sharing {
        Sharing::Exclusive => libc::F_WRLCK,
        Sharing::Readers => libc::F_RDLCK,
    };
    // SAFETY: `flock` is plain data, for which zeroes are a valid value.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    range.l_type = kind as libc::c_short;
    range.l_whence = libc::SEEK_SET as libc::c_short;
    // SAFETY: the descriptor is open, and `range` lives across the call.
    let answer = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &range) };
    if answer == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Err(Error::locked(
            name,
            "another process is using this image",
            "stop that process, or talk to it through its --control socket",
        )),
        _ => Err(Error::host(
            format!("lock {name}"),
            error,
            "keep the image on a file system that supports file locks",
        )),
    }
}
