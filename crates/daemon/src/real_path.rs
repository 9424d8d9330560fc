//! Paths that operators give, without links: what only the file system that has them can tell, and
//! it may not answer.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use crate::image_probe::PATIENCE;

/// Whether a path is being looked at; rings when that ends.
static LOOKS: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());

/// Lets the next one look, however this one ends.
struct Looks;

impl Drop for Looks {
    fn drop(&mut self) {
        *LOOKS.0.lock().unwrap_or_else(PoisonError::into_inner) = false;
        LOOKS.1.notify_one();
    }
}

impl Looks {
    /// After the one that looks now. Nothing if that does not end in time: its file system hangs.
    fn begin(patience: Duration) -> Option<Self> {
        let looks = LOOKS.0.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = LOOKS.1.wait_timeout_while(looks, patience, |looks| *looks);
        let (mut looks, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if *looks {
            return None;
        }
        // Only now: one that is dropped takes the lock that is held here.
        *looks = true;
        Some(Self)
    }
}

/// The path without links, found by a thread of its own: one at a time, which is waited for for a
/// second. So a client of the control socket that names a path which hangs keeps a thread for it,
/// and others do not.
pub fn real_path(path: &Path) -> io::Result<PathBuf> {
    found_within(PATIENCE, path)
}

fn found_within(patience: Duration, path: &Path) -> io::Result<PathBuf> {
    let hangs = || io::Error::new(io::ErrorKind::TimedOut, "a file system does not answer");
    let (looks, path) = (Looks::begin(patience).ok_or_else(hangs)?, path.to_owned());
    let (tell, told) = sync_channel(1);
    let look = move || {
        let found = path.canonicalize();
        drop(looks);
        drop(tell.send(found));
    };
    Builder::new().name("path".into()).spawn(look)?;
    told.recv_timeout(patience).unwrap_or_else(|_| Err(hangs()))
}

#[cfg(test)]
mod tests {
    use flowstone_testkit::HANG;

    use super::*;

    #[test]
    fn a_look_at_a_path_that_panics_lets_the_next_one_look() {
        let look = || {
            let looks = Looks::begin(HANG);
            assert!(looks.is_none(), "the mistake");
        };
        assert!(std::thread::spawn(look).join().is_err());
        assert!(real_path(Path::new("/proc/self")).is_ok());
    }

    /// Two commands at once: one was told that a file system does not answer, though all did.
    #[test]
    fn commands_that_come_together_find_their_paths() {
        let barrier = std::sync::Barrier::new(8);
        let look = || {
            barrier.wait();
            (0..100).all(|_| found_within(HANG, Path::new("/proc/self")).is_ok())
        };
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..8).map(|_| scope.spawn(look)).collect();
            assert!(all.into_iter().all(|it| it.join().unwrap()), "a path was refused");
        });
    }
}
