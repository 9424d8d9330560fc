//! Resolves symbolic links in paths that operators give. The file system may not answer.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread::Builder;
use std::time::Duration;

/// Whether a path is being resolved; signalled when that ends.
static LOOKS: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());

/// The right to resolve a path, released on drop, also on a panic.
struct Looks;

impl Drop for Looks {
    fn drop(&mut self) {
        *LOOKS.0.lock().unwrap_or_else(PoisonError::into_inner) = false;
        LOOKS.1.notify_one();
    }
}

impl Looks {
    /// Waits for the current resolution. Returns `None` if that does not end in time: its file
    /// system hangs.
    fn begin(patience: Duration) -> Option<Self> {
        let looks = LOOKS.0.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = LOOKS.1.wait_timeout_while(looks, patience, |looks| *looks);
        let (mut looks, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if *looks {
            return None;
        }
        // Only now: dropping a `Looks` takes the lock that is held here.
        *looks = true;
        Some(Self)
    }
}

/// Resolves links in a path on a separate thread, one path at a time, and waits for it for
/// `patience`; later it fails with [`io::ErrorKind::TimedOut`]. So clients that name a path on a
/// hanging file system occupy only one thread.
pub fn real_path(path: &Path, patience: Duration) -> io::Result<PathBuf> {
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
        assert!(real_path(Path::new("/proc/self"), HANG).is_ok());
    }

    /// Regression: of two simultaneous commands one was told that a file system does not answer,
    /// though all did.
    #[test]
    fn commands_that_come_together_find_their_paths() {
        let barrier = std::sync::Barrier::new(8);
        let look = || {
            barrier.wait();
            (0..100).all(|_| real_path(Path::new("/proc/self"), HANG).is_ok())
        };
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..8).map(|_| scope.spawn(look)).collect();
            assert!(all.into_iter().all(|it| it.join().unwrap()), "a path was refused");
        });
    }
}
