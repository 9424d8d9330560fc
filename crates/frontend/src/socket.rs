//! Binding a unix socket without destroying anything that is in its place.
//!
//! A path that exists is replaced only if it is a socket that no process has bound any more: the
//! kernel says `ECONNREFUSED` of such a one, and of no other. A full backlog, another type of
//! socket, a refusal of permission all mean that the socket is in use, or may be.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use flowstone_block::{Errno, Error, Result};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// Longest path of a unix socket (`sun_path` less its terminator).
const PATH_BYTES_MAX: usize = 107;

/// A listening socket and its file. Dropping it removes the file, unless that is another one by
/// now: a process that came later may have put its own socket there.
pub struct BoundSocket {
    listener: UnixListener,
    path: PathBuf,
    identity: Option<(u64, u64)>,
}

impl BoundSocket {
    /// What connections come in on.
    pub fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for BoundSocket {
    fn drop(&mut self) {
        let now = std::fs::symlink_metadata(&self.path).ok().as_ref().map(identity);
        if now.is_some() && now == self.identity {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// Listens at `path`. A socket that a killed daemon has left there is replaced; anything else that
/// is there stays. `what` names the socket in messages.
pub fn bind_socket(what: &str, path: &Path) -> Result<BoundSocket> {
    let name = format!("{what} {}", path.display());
    if path.as_os_str().len() > PATH_BYTES_MAX {
        let why = format!("the path is longer than {PATH_BYTES_MAX} bytes");
        return Err(Error::invalid(name, why, "choose a shorter path, e.g. below /run"));
    }
    remove_stale(path, &name)?;
    let listener = UnixListener::bind(path).map_err(|error| {
        let advice = match error.kind() {
            io::ErrorKind::NotFound => "create the directory first",
            io::ErrorKind::PermissionDenied => "choose a directory that you may write",
            _ => "choose another path",
        };
        Error::host(name, error, advice)
    })?;
    let identity = std::fs::symlink_metadata(path).ok().as_ref().map(identity);
    Ok(BoundSocket { listener, path: path.to_owned(), identity })
}

/// Removes a socket that no process has bound any more.
fn remove_stale(path: &Path, name: &str) -> Result<()> {
    let Ok(metadata) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !metadata.file_type().is_socket() {
        let why = "the path exists and is not a socket";
        return Err(Error::invalid(name, why, "choose another path, or remove that file"));
    }
    match probe(path) {
        Err(Errno::CONNREFUSED) => {}
        // A backlog that is full, or a socket of another type: a process has it.
        Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => {
            let why = "another process is listening there";
            return Err(Error::invalid(name, why, "choose another path, or stop that process"));
        }
        Err(errno) => {
            let advice = "choose another path, or remove the socket by hand if it is stale";
            return Err(Error::host(name, errno, advice));
        }
    }
    std::fs::remove_file(path)
        .map_err(|error| Error::host(name, error, "remove the stale socket by hand"))
}

/// Connects and hangs up, without waiting for a place in the other's backlog.
fn probe(path: &Path) -> std::result::Result<(), Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)
}
