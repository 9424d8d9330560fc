//! The way to a running daemon, for `stats`, `record` and `drop`: a socket named after the number
//! of the mount's file system, so that the path of the mount is all that has to be known. It is the
//! daemon's user's alone.
//!
//! A client sends one line of JSON and gets one back; `record` gets lines until it goes.

use std::fs::{self, Permissions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::Builder;

use serde::{Deserialize, Serialize};

use crate::files::Files;
use crate::mount_point;

/// A question may be so long.
const LINE_MAX: u64 = 4 << 10;

/// What can be asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Question {
    /// The counters.
    Stats,
    /// A line for each use of a file from now on.
    Record,
    /// Drop all copies.
    DropAll,
    /// Drop the copy of the file with this number in the mount.
    DropFile(u64),
}

/// The socket of a mount.
fn socket(device: &str) -> PathBuf {
    let private = std::env::var_os("XDG_RUNTIME_DIR").filter(|_| !is_root());
    let folder = private.map_or_else(|| PathBuf::from("/run"), PathBuf::from);
    folder.join("flowstone-guest").join(format!("{device}.sock"))
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Asks the daemon of a mount. Returns where its answer can be read.
pub fn ask(mount: &Path, question: &Question) -> io::Result<BufReader<UnixStream>> {
    let at = fs::canonicalize(mount).or_else(|_| std::path::absolute(mount))?;
    let listed =
        mount_point::listed(&at).ok_or_else(|| io::Error::other("no cache is mounted there"))?;
    let mut stream = UnixStream::connect(socket(&listed.device))?;
    let mut line = serde_json::to_string(question)?;
    line.push('\n');
    stream.write_all(line.as_bytes())?;
    Ok(BufReader::new(stream))
}

/// Answers questions about a mount, each client on a thread.
pub fn serve(files: &Arc<Files>, mount: &Path) -> io::Result<()> {
    let listed = mount_point::listed(mount)
        .ok_or_else(|| io::Error::other("the mount is not in the list of mounts"))?;
    let path = socket(&listed.device);
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
        fs::set_permissions(folder, Permissions::from_mode(0o700))?;
        remove_dead(folder)?;
    }
    // One that is there is that of a daemon that was killed: the number is this mount's now.
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&path)?;
    let files = files.clone();
    Builder::new().name("control".into()).spawn(move || {
        for stream in listener.incoming().flatten() {
            let files = files.clone();
            // Without a thread there is no answer; the client sees its connection closed.
            let _ = Builder::new().name("client".into()).spawn(move || answer(&files, stream));
        }
    })?;
    Ok(())
}

/// Takes away the sockets of daemons that were killed: nobody listens there.
fn remove_dead(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
        if UnixStream::connect(&path).is_err_and(refused) {
            // Another daemon that starts now may be faster.
            let _ = fs::remove_file(path);
        }
    }
    Ok(())
}

/// Takes the socket of a mount away.
pub fn remove(device: &str) {
    // A socket that stays does no harm.
    let _ = fs::remove_file(socket(device));
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
            // Tells the client that it misses nothing from here on.
            writeln!(stream, "{{}}")?;
            lines.into_iter().try_for_each(|line| stream.write_all(line.as_bytes()))
        }
    }
}
