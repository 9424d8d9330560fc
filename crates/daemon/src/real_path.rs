//! Paths that operators give, without links: what only the file system that has them can tell, and it may not answer.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::Builder;

use crate::image_probe::PATIENCE;

/// Whether a path is being looked at.
static LOOKS: AtomicBool = AtomicBool::new(false);

/// Lets the next one look, however this one ends.
struct Looks;

impl Drop for Looks {
    fn drop(&mut self) {
        LOOKS.store(false, Ordering::Release);
    }
}

/// The path without links, found by a thread of its own: one at a time, which is waited for for a second. So a client of
/// the control socket that names a path which hangs keeps a thread for it, and others do not.
pub fn real_path(path: &Path) -> io::Result<PathBuf> {
    let hangs = || io::Error::new(io::ErrorKind::TimedOut, "a file system does not answer");
    if LOOKS.swap(true, Ordering::AcqRel) {
        return Err(hangs());
    }
    let (looks, path) = (Looks, path.to_owned());
    let (tell, told) = sync_channel(1);
    let look = move || {
        let found = path.canonicalize();
        drop(looks);
        drop(tell.send(found));
    };
    Builder::new().name("path".into()).spawn(look)?;
    told.recv_timeout(PATIENCE).unwrap_or_else(|_| Err(hangs()))
}
