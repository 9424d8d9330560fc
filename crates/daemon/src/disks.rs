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

    /// The disk with this number is open. Returns `false` if it comes too late, and is let go.
    pub fn serve(&self, number: u32, disk: Arc<Disk>) -> bool {
        let mut table = self.table();
        if table.stopping {
            disk.begin_stop();
            return false;
        }
        table.known.insert(number, State::Serving(disk));
        true
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
