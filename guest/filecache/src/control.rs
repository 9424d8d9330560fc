//! The control socket of a running daemon, for `stats`, `record` and `drop`. It is named after the
//! device number of the mount's file system, so that a client needs only the path of the mount.
//! Only the daemon's user has access.
//!
//! A client sends one line of JSON and gets one back; `record` gets lines until it disconnects.

use std::fs::{self, File, Permissions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::Builder;

use flowstone_memory::mutated;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use serde::{Deserialize, Serialize};

use crate::files::Files;
use crate::mount_point;

/// Longest question in bytes.
const LINE_MAX: u64 = 4 << 10;

/// A question to the daemon.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Question {
    /// Return the counters.
    Stats,
    /// Return a line for each use of a file from now on.
    Record,
    /// Drop all copies.
    DropAll,
    /// Drop the copy of the file with this inode number in the mount.
    DropFile(u64),
}

/// Returns the path of a mount's socket.
fn socket(device: &str) -> PathBuf {
    let private = std::env::var_os("XDG_RUNTIME_DIR").filter(|_| !is_root());
    let folder = private.map_or_else(|| PathBuf::from("/run"), PathBuf::from);
    folder.join("flowstone-guest").join(format!("{device}.sock"))
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Asks the daemon of a mount. Returns the stream of its answer.
pub fn ask(mount: &Path, question: &Question) -> io::Result<BufReader<UnixStream>> {
    let at = fs::canonicalize(mount).or_else(|_| std::path::absolute(mount))?;
    let device = mount_point::device_at(&at);
    let device = device.ok_or_else(|| io::Error::other("no cache is mounted there"))?;
    let mut stream = UnixStream::connect(socket(&device))?;
    let mut line = serde_json::to_string(question)?;
    line.push('\n');
    stream.write_all(line.as_bytes())?;
    Ok(BufReader::new(stream))
}

/// The socket of a served mount.
pub struct Socket {
    path: PathBuf,
    /// Device and inode number, which no other file gets while the socket is open.
    file: (u64, u64),
}

impl Socket {
    /// Makes the socket. Device numbers of former mounts are reused, so an existing socket of this
    /// name belongs to a daemon that was killed or whose mount is gone.
    fn make(path: PathBuf) -> io::Result<(Self, UnixListener)> {
        let folder = path.parent().ok_or(io::ErrorKind::NotFound)?;
        fs::create_dir_all(folder)?;
        fs::set_permissions(folder, Permissions::from_mode(0o700))?;
        let _locked = lock(folder)?;
        remove_dead(folder)?;
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        let file = number_of(&path)?;
        Ok((Self { path, file }, listener))
    }

    /// Removes the socket if it is still ours: another daemon may have its name by now.
    pub fn remove(&self) -> io::Result<()> {
        let _locked = lock(self.path.parent().ok_or(io::ErrorKind::NotFound)?)?;
        let is_ours = number_of(&self.path)? == self.file;
        let is_ours = mutated("guest.control.removes-what-has-its-name", is_ours, true);
        if is_ours {
            fs::remove_file(&self.path)?;
        }
        Ok(())
    }
}

/// Returns device and inode number.
fn number_of(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|it| (it.dev(), it.ino()))
}

/// Serialises daemons that make or remove sockets: a new socket cannot be connected to for a
/// moment, and would be taken for that of a killed daemon.
fn lock(folder: &Path) -> io::Result<File> {
    let folder = File::open(folder)?;
    let locks = mutated("guest.control.does-not-lock", true, false);
    if locks {
        rustix::fs::flock(&folder, rustix::fs::FlockOperation::LockExclusive)?;
    }
    Ok(folder)
}

/// Answers questions about a mount, each client on its own thread.
pub fn serve(files: &Arc<Files>, mount: &Path) -> io::Result<Socket> {
    let device = mount_point::device_at(mount)
        .ok_or_else(|| io::Error::other("the mount is not in the list of mounts"))?;
    let (socket, listener) = Socket::make(socket(&device))?;
    let files = files.clone();
    Builder::new().name("control".into()).spawn(move || {
        for stream in listener.incoming().flatten() {
            let files = files.clone();
            // Without a thread there is no answer; the client sees its connection closed.
            let _ = Builder::new().name("client".into()).spawn(move || answer(&files, stream));
        }
    })?;
    Ok(socket)
}

/// Removes the sockets of killed daemons, on which no process listens.
fn remove_dead(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if is_dead(&path)? {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// Returns whether no process listens. Does not wait for a daemon with a full backlog.
fn is_dead(path: &Path) -> io::Result<bool> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let client = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    Ok(connect(&client, &SocketAddrUnix::new(path)?) == Err(Errno::CONNREFUSED))
}

fn answer(files: &Files, mut stream: UnixStream) -> io::Result<()> {
    let mut line = String::new();
    let reader = stream.try_clone()?;
    BufReader::new(io::Read::take(reader, LINE_MAX)).read_line(&mut line)?;
    match serde_json::from_str(&line)? {
        Question::Stats => writeln!(stream, "{}", serde_json::to_string(&files.report())?),
        Question::DropAll => {
            files.copies.drop_all();
            writeln!(stream, "{{}}")
        }
        Question::DropFile(id) => {
            if let Ok(node) = files.nodes.get(id) {
                files.copies.drop_file(node.identity);
            }
            writeln!(stream, "{{}}")
        }
        Question::Record => {
            let lines = files.recorders.add();
            // Tells the client that all uses from here on are recorded.
            writeln!(stream, "{{}}")?;
            lines.into_iter().try_for_each(|line| stream.write_all(line.as_bytes()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel reuses the device number of an unmounted file system.
    #[test]
    fn a_daemon_that_ends_leaves_the_socket_of_the_next_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("0:40.sock");
        let (first, _listens) = Socket::make(path.clone()).unwrap();
        let (second, _listens_too) = Socket::make(path.clone()).unwrap();
        first.remove().unwrap();
        assert!(path.exists(), "it was taken away");
        second.remove().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn sockets_of_killed_daemons_go_and_those_that_are_being_made_stay() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        drop(UnixListener::bind(at("dead")).unwrap());
        std::thread::scope(|scope| {
            for name in ["one", "other"] {
                let path = at(name);
                scope.spawn(move || {
                    for _ in 0..2000 {
                        let (_socket, _listens) = Socket::make(path.clone()).unwrap();
                        assert!(path.exists(), "it was taken for that of a killed daemon");
                    }
                });
            }
        });
        assert!(!at("dead").exists());
    }
}
