//! Binding a unix socket without destroying anything that is in its place.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use flowstone_block::{Error, Result};

/// Longest path of a unix socket (`sun_path` less its terminator).
const PATH_BYTES_MAX: usize = 107;

/// Listens at `path`. A socket that a killed daemon has left there is replaced; anything else that
/// is there stays. `what` names the socket in messages.
pub fn bind_socket(what: &str, path: &Path) -> Result<UnixListener> {
    let name = format!("{what} {}", path.display());
    if path.as_os_str().len() > PATH_BYTES_MAX {
        let why = format!("the path is longer than {PATH_BYTES_MAX} bytes");
        return Err(Error::invalid(name, why, "choose a shorter path, e.g. below /run"));
    }
    remove_stale(path, &name)?;
    UnixListener::bind(path).map_err(|error| {
        let advice = match error.kind() {
            io::ErrorKind::NotFound => "create the directory first",
            io::ErrorKind::PermissionDenied => "choose a directory that you may write",
            _ => "choose another path",
        };
        Error::host(name, error, advice)
    })
}

/// Removes a socket that nobody listens on any more.
fn remove_stale(path: &Path, name: &str) -> Result<()> {
    let Ok(metadata) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !metadata.file_type().is_socket() {
        let why = "the path exists and is not a socket";
        return Err(Error::invalid(name, why, "choose another path, or remove that file"));
    }
    if UnixStream::connect(path).is_ok() {
        let why = "another process is listening there";
        return Err(Error::invalid(name, why, "choose another path, or stop that process"));
    }
    std::fs::remove_file(path)
        .map_err(|error| Error::host(name, error, "remove the stale socket by hand"))
}
