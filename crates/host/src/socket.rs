//! Binding of unix sockets, without destroying existing files.
//!
//! An existing path is replaced only if it is a socket that no process has bound any more: only for
//! such a socket does `connect` fail with `ECONNREFUSED`. A full backlog, another socket
//! type, or a lack of permission mean that the socket is in use, or may be.

use std::fs::Metadata;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use flowstone_block::{Errno, Error, Result};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};

use crate::SocketAccess;

/// Longest path of a unix socket (`sun_path` less its terminator).
const PATH_BYTES_MAX: usize = 107;

/// A listening socket and its file. Dropping it removes the file, unless it has been replaced: a
/// later process may have put its own socket there.
pub struct BoundSocket {
    listener: UnixListener,
    path: PathBuf,
    identity: Option<(u64, u64)>,
}

impl BoundSocket {
    /// Returns the listener.
    pub fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// Returns the path.
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

/// Listens at `path`, for peers allowed by `access`. A stale socket left by a killed daemon is
/// replaced; any other existing file stays. `what` names the socket in messages.
pub fn bind_socket(what: &str, path: &Path, access: SocketAccess) -> Result<BoundSocket> {
    let name = format!("{what} {}", path.display());
    if path.as_os_str().len() > PATH_BYTES_MAX {
        let why = format!("the path is longer than {PATH_BYTES_MAX} bytes");
        return Err(Error::invalid(name, why, "choose a shorter path, e.g. below /run"));
    }
    remove_stale(path, &name)?;
    let listener = listen_closed(path, access).map_err(|error| {
        let advice = match error.kind() {
            io::ErrorKind::NotFound => "create the directory first",
            io::ErrorKind::PermissionDenied => "choose a directory that you may write",
            _ => "choose another path",
        };
        Error::host(name.as_str(), error, advice)
    })?;
    let identity = std::fs::symlink_metadata(path).ok().as_ref().map(identity);
    // From here on dropping it removes its file, whatever fails.
    let socket = BoundSocket { listener, path: path.to_owned(), identity };
    access.open(path, &name)?;
    Ok(socket)
}

/// Makes a listener that no peer may connect to yet, if `access` is given.
fn listen_closed(path: &Path, access: SocketAccess) -> io::Result<UnixListener> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    access.close(socket.as_fd())?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    // At once: a socket that is bound and does not listen looks stale to others. The backlog is the
    // system's maximum.
    listen(&socket, -1).inspect_err(|_| drop(std::fs::remove_file(path)))?;
    Ok(socket.into())
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
        // A full backlog, or another socket type: a process has bound it.
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

/// Connects and disconnects, without waiting for a place in the backlog.
fn probe(path: &Path) -> std::result::Result<(), Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
    }

    fn access(mode: &str) -> SocketAccess {
        SocketAccess { group: None, mode: Some(mode.parse().unwrap()) }
    }

    #[test]
    fn a_socket_is_open_to_no_one_until_it_has_its_group_and_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let _listener = listen_closed(&path, access("0666")).unwrap();
        assert_eq!(mode(&path), 0);
        access("0666").open(&path, "socket").unwrap();
        // As requested, without the umask.
        assert_eq!(mode(&path), 0o666);
    }

    #[test]
    fn a_socket_without_wishes_is_as_the_system_makes_it() {
        let dir = tempfile::tempdir().unwrap();
        let (ours, plain) = (dir.path().join("ours"), dir.path().join("plain"));
        let _ours = bind_socket("socket", &ours, SocketAccess::default()).unwrap();
        let _plain = UnixListener::bind(&plain).unwrap();
        assert_eq!(mode(&ours), mode(&plain));
    }

    /// Otherwise the owner of the folder could have any file of the daemon's made accessible.
    #[test]
    fn what_has_taken_the_place_of_the_socket_is_not_opened_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let (path, file) = (dir.path().join("s"), dir.path().join("file"));
        std::fs::write(&file, b"secret").unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink(&file, &path).unwrap();
        let refusal = access("0666").open(&path, "socket s").unwrap_err().to_string();
        assert!(refusal.contains("another process has replaced the socket"), "{refusal}");
        assert_eq!(mode(&file), 0o600);
    }

    #[test]
    fn a_group_that_may_not_be_given_leaves_no_socket_behind() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        if rustix::process::getuid().is_root() {
            return flowstone_testkit::skip("root may give a file to any group");
        }
        let group = Some("0".parse().unwrap());
        let refused = bind_socket("socket", &path, SocketAccess { group, mode: None });
        let refusal = refused.err().expect("a refusal").to_string();
        assert!(refusal.contains("choose a group that you are in"), "{refusal}");
        assert!(!path.exists());
    }
}
