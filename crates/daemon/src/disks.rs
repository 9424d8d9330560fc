//! The disks of a daemon, from the moment that they are to be opened until it stops.
//!
//! Commands look a disk up and let go of the lock: what a disk does then, nothing else waits for.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flowstone_block::{Error, Result};

use crate::disk::Disk;

/// All disks, by their numbers: these are not used again.
#[derive(Default)]
pub struct Disks(Mutex<Table>);

#[derive(Default)]
struct Table {
    known: BTreeMap<u32, State>,
    next: u32,
    /// Disks that are opened from now on are too late.
    stopping: bool,
}

enum State {
    /// Its image waits for a lock, or is being recovered; the disk will have this name.
    Opening(String),
    Serving(Arc<Disk>),
}

impl Disks {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A disk is to be opened. Returns its number.
    pub fn begin(&self, name: String) -> u32 {
        let mut table = self.table();
        let number = table.next;
        table.next += 1;
        table.known.insert(number, State::Opening(name));
        number
    }

    /// Puts in the disk with this number, which `start` makes; nothing if the daemon is stopping.
    ///
    /// Under the lock: a disk that listens is among those that [`stop`](Self::stop) returns.
    pub fn serve(
        &self,
        number: u32,
        start: impl FnOnce() -> Result<Disk>,
    ) -> Result<Option<Arc<Disk>>> {
        let mut table = self.table();
        if table.stopping {
            return Ok(None);
        }
        let disk = Arc::new(start()?);
        table.known.insert(number, State::Serving(Arc::clone(&disk)));
        Ok(Some(disk))
    }

    /// Does this, which does not take long, unless the daemon is stopping. It does not begin to stop
    /// meanwhile.
    pub fn unless_stopping(&self, act: impl FnOnce()) {
        let table = self.table();
        if !table.stopping {
            act();
        }
    }

    /// The disk with this number cannot be opened.
    pub fn give_up(&self, number: u32) {
        self.table().known.remove(&number);
    }

    /// Those that are served.
    pub fn serving(&self) -> Vec<Arc<Disk>> {
        self.table().serving().cloned().collect()
    }

    /// Names of those that are being opened.
    pub fn opening(&self) -> Vec<String> {
        self.table().opening().map(str::to_owned).collect()
    }

    /// Whether there is nothing to serve, and will be nothing.
    pub fn is_empty(&self) -> bool {
        let table = self.table();
        table.known.is_empty() && !table.stopping
    }

    /// Takes all that are served. None is from now on.
    pub fn stop(&self) -> Vec<Arc<Disk>> {
        let mut table = self.table();
        table.stopping = true;
        let served = table.serving().cloned().collect();
        table.known.clear();
        served
    }

    /// The one disk that an operator means: by its name, or by the path of its image. A word that fits
    /// two is refused: a disk that grew by mistake cannot be shrunk again.
    pub fn find(&self, what: &str, name: &str, path: Option<&Path>) -> Result<Arc<Disk>> {
        let path = path.unwrap_or(Path::new(name));
        let (served, is_opening) = {
            let table = self.table();
            let is_opening = table.opening().any(|opening| opening == name);
            (table.serving().cloned().collect::<Vec<_>>(), is_opening)
        };
        let mut called = served.into_iter().filter(|disk| disk.is_called(name, path));
        match (called.next(), called.next()) {
            (Some(disk), None) => Ok(disk),
            (None, _) if is_opening => {
                Err(Error::busy(what, "it is being opened", "try again later"))
            }
            (None, _) => {
                let advice = "see `flowstone stats` for the names";
                Err(Error::invalid(what, "no disk is called that", advice))
            }
            _ => {
                let advice = "give the whole path of the image";
                Err(Error::invalid(what, "two disks are called that", advice))
            }
        }
    }
}

impl Table {
    fn serving(&self) -> impl Iterator<Item = &Arc<Disk>> {
        self.known.values().filter_map(|state| match state {
            State::Serving(disk) => Some(disk),
            State::Opening(_) => None,
        })
    }

    fn opening(&self) -> impl Iterator<Item = &str> {
        self.known.values().filter_map(|state| match state {
            State::Opening(name) => Some(&**name),
            State::Serving(_) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It listened until the process ended, and what a guest wrote was not flushed.
    #[test]
    fn a_disk_that_comes_too_late_does_not_start() {
        let disks = Disks::default();
        let number = disks.begin("late".into());
        assert_eq!(disks.opening(), ["late"]);
        disks.unless_stopping(|| assert!(disks.0.try_lock().is_err(), "it may begin to stop"));
        assert!(disks.stop().is_empty());
        disks.unless_stopping(|| unreachable!());
        let late = disks.serve(number, || unreachable!("nobody would stop it"));
        assert!(late.unwrap().is_none());
        assert!(disks.opening().is_empty() && disks.serving().is_empty() && !disks.is_empty());
    }
}
