//! The disks of a daemon, from the moment that they are to be opened until it stops.
//!
//! Commands look a disk up and let go of the lock: what a disk does then, nothing else waits for.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use flowstone_block::{Error, Result, mutant};
use serde::Serialize;

use crate::control::{DiskWord, Refused};
use crate::disk::Disk;
use crate::real_path::real_path;

/// The thread that does this has panicked.
pub fn died(what: &str) -> Error {
    Error::host(what, "its thread has panicked", "report this as a defect")
}

/// All disks, by their numbers: these are not used again.
#[derive(Default)]
pub struct Disks {
    table: Mutex<Table>,
    /// Rings when a disk has come to something, or to nothing, and when the daemon stops.
    settled: Condvar,
}

#[derive(Default)]
struct Table {
    known: BTreeMap<u32, State>,
    failed: Vec<Failed>,
    next: u32,
    end: Option<End>,
}

/// A disk that is not served, and why. There are no more of them than are configured.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
pub struct Failed {
    /// What is configured; nothing if that is what is wrong.
    pub name: Option<String>,
    /// What was being done.
    pub what: String,
    pub why: String,
    pub advice: String,
}

/// What a daemon ends with, whichever comes first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// It is told to stop. Disks that are opened from now on are too late.
    Stop,
    /// No disk could be served.
    NothingToServe,
}

enum State {
    /// Its image waits for a lock, or is being recovered; the disk will have this name.
    Opening(String),
    /// It begins to listen: a guest may be served soon.
    Starting(String),
    Serving(Arc<Disk>),
}

impl Disks {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A disk is to be opened. Returns its number.
    pub fn begin(&self, name: String) -> u32 {
        let mut table = self.table();
        let number = table.next;
        table.next += 1;
        table.known.insert(number, State::Opening(name));
        number
    }

    /// The disk with this number is about to listen. Returns `false` if that is too late: the
    /// daemon is stopping.
    pub fn begin_start(&self, number: u32) -> bool {
        let mut table = self.table();
        if table.end.is_some() {
            return false;
        }
        if let Some(state) = table.known.get_mut(&number)
            && let State::Opening(name) = state
        {
            *state = State::Starting(std::mem::take(name));
        }
        true
    }

    /// The disk with this number listens. It is given back if that is too late: it is to be
    /// stopped, and then [given up](Self::give_up).
    pub fn serve(&self, number: u32, disk: Disk) -> std::result::Result<(), Box<Disk>> {
        let mut table = self.table();
        if table.end.is_some() {
            return Err(Box::new(disk));
        }
        table.known.insert(number, State::Serving(Arc::new(disk)));
        drop(table);
        self.settled.notify_all();
        Ok(())
    }

    /// Waits until no disk is being opened any more; after `patience`, until one is served. Returns
    /// the names of those that are still being opened, or nothing if the daemon stops.
    pub fn wait_for_most(&self, patience: Duration) -> Option<Vec<String>> {
        let deadline = Instant::now() + patience;
        let mut table = self.table();
        while table.end.is_none() {
            let late: Vec<String> = table.opening().map(str::to_owned).collect();
            let left = deadline.saturating_duration_since(Instant::now());
            let is_late = left.is_zero() && !mutant("daemon.serve.is-ready-with-the-last-disk");
            if late.is_empty() || (is_late && table.serving().next().is_some()) {
                return Some(late);
            }
            table = if left.is_zero() {
                self.settled.wait(table).unwrap_or_else(PoisonError::into_inner)
            } else {
                let woken = self.settled.wait_timeout(table, left);
                woken.unwrap_or_else(PoisonError::into_inner).0
            };
        }
        None
    }

    /// Does this, which does not take long, unless the daemon is stopping. It does not begin to
    /// stop meanwhile.
    pub fn unless_stopping(&self, act: impl FnOnce()) {
        let table = self.table();
        if table.end.is_none() {
            act();
        }
    }

    /// Opens the disk with this number and name. One that cannot be opened is given up, also if it
    /// panics: the daemon's end waits for disks that start.
    pub fn open(&self, number: u32, name: &str, open: impl FnOnce() -> Result<()>) -> Result<()> {
        let opened = catch_unwind(AssertUnwindSafe(open));
        opened.unwrap_or_else(|_| Err(died(&format!("disk {name}")))).inspect_err(|error| {
            self.fail(Some(name.to_owned()), error);
            self.give_up(number);
        })
    }

    /// There is no disk with this number: it could not be opened, or has come too late.
    pub fn give_up(&self, number: u32) {
        self.table().known.remove(&number);
        self.settled.notify_all();
    }

    /// A disk, with this name if it has one, could not be opened.
    pub fn fail(&self, name: Option<String>, error: &Error) {
        let why = error.source().map_or_else(String::new, ToString::to_string);
        let (what, advice) = (error.what().to_owned(), error.advice().to_owned());
        self.table().failed.push(Failed { name, what, why, advice });
    }

    /// Those that could not be opened.
    pub fn failed(&self) -> Vec<Failed> {
        self.table().failed.clone()
    }

    /// Those that are served.
    pub fn serving(&self) -> Vec<Arc<Disk>> {
        self.table().serving().cloned().collect()
    }

    /// Names of those that are being opened.
    pub fn opening(&self) -> Vec<String> {
        self.table().opening().map(str::to_owned).collect()
    }

    /// Ends the daemon if there is nothing to serve, and will be nothing, and it has not been told
    /// to stop.
    pub fn end_if_empty(&self) -> bool {
        let mut table = self.table();
        if table.known.is_empty() && table.end.is_none() {
            table.end = Some(End::NothingToServe);
        }
        table.end == Some(End::NothingToServe)
    }

    /// Takes all that are served. None is from now on. Nothing if the daemon has ended because
    /// there is nothing to serve.
    pub fn stop(&self) -> Option<Vec<Arc<Disk>>> {
        let mut table = self.table();
        if *table.end.get_or_insert(End::Stop) == End::NothingToServe {
            return None;
        }
        let served = table.serving().cloned().collect();
        table.known.retain(|_, state| matches!(state, State::Starting(_)));
        drop(table);
        self.settled.notify_all();
        Some(served)
    }

    /// After [`stop`](Self::stop): waits for disks that have begun to listen by then, which stop by
    /// themselves, until `deadline` at most.
    pub fn wait_for_late_ones(&self, deadline: Instant) {
        let mut table = self.table();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if table.known.is_empty() || left.is_zero() {
                return;
            }
            let woken = self.settled.wait_timeout(table, left);
            table = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The one disk that an operator means: by its name, or by the path of its image. A word that
    /// fits two is refused: a disk that grew by mistake cannot be shrunk again.
    pub fn find(&self, what: &str, disk: &DiskWord) -> std::result::Result<Arc<Disk>, Refused> {
        let what = format!("{what} {}", disk.name);
        let name = &*disk.name;
        let path = disk.path.as_deref().unwrap_or(Path::new(name));
        let (served, is_opening) = {
            let table = self.table();
            let is_opening = table.opening().any(|opening| opening == name);
            (table.serving().cloned().collect::<Vec<_>>(), is_opening)
        };
        // Those that are known by it, before any file system is asked: the disk may be well, and
        // another one not.
        let called = |path: &Path| {
            let mut called = served.iter().filter(|disk| disk.is_called(name, path));
            (called.next().map(Arc::clone), called.next())
        };
        let found = match called(path) {
            (None, _) if !is_opening => match real_path(path) {
                Ok(path) => called(&path),
                Err(error) if error.kind() == ErrorKind::TimedOut => {
                    return Err(Error::busy(what, error, "give the name of the disk").into());
                }
                Err(_) => (None, None),
            },
            found => found,
        };
        match found {
            (Some(disk), None) => Ok(disk),
            (None, _) if is_opening => {
                Err(Error::busy(what, "it is being opened", "try again later").into())
            }
            (None, _) => {
                let advice = "see `flowstone stats` for the names";
                Err(Refused::unknown(Error::invalid(what, "no disk is called that", advice)))
            }
            _ => {
                let advice = "give the whole path of the image";
                Err(Error::invalid(what, "two disks are called that", advice).into())
            }
        }
    }
}

impl Table {
    fn serving(&self) -> impl Iterator<Item = &Arc<Disk>> {
        self.known.values().filter_map(|state| match state {
            State::Serving(disk) => Some(disk),
            State::Opening(_) | State::Starting(_) => None,
        })
    }

    fn opening(&self) -> impl Iterator<Item = &str> {
        self.known.values().filter_map(|state| match state {
            State::Opening(name) | State::Starting(name) => Some(&**name),
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
        disks.unless_stopping(|| assert!(disks.table.try_lock().is_err(), "it may begin to stop"));
        assert!(disks.stop().unwrap().is_empty());
        disks.unless_stopping(|| unreachable!());
        assert!(!disks.begin_start(number) && !disks.end_if_empty());
        assert!(disks.opening().is_empty() && disks.serving().is_empty());
    }

    /// What is about to be said is not said when the daemon stops.
    #[test]
    fn who_waits_for_disks_does_not_wait_for_one_that_failed_nor_when_the_daemon_stops() {
        let disks = Disks::default();
        let [failed, hung] = ["failed", "hung"].map(|name| disks.begin(name.into()));
        disks.give_up(failed);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| disks.wait_for_most(Duration::ZERO));
            // None is served yet, however late it is.
            std::thread::sleep(Duration::from_millis(50));
            assert!(!waiter.is_finished());
            assert!(disks.stop().unwrap().is_empty());
            assert_eq!(waiter.join().unwrap(), None);
        });
        let disks = Disks::default();
        let number = disks.begin("hung".into());
        assert_eq!(number, hung - 1);
        disks.give_up(number);
        assert_eq!(disks.wait_for_most(Duration::ZERO), Some(Vec::new()));
    }

    #[test]
    fn a_disk_whose_opening_panics_is_not_waited_for() {
        let disks = Disks::default();
        let number = disks.begin("dead".into());
        let opened = disks.open(number, "dead", || {
            assert!(!disks.begin_start(number), "the mistake");
            Ok(())
        });
        assert!(opened.is_err() && disks.failed().len() == 1);
        assert!(disks.stop().unwrap().is_empty());
        disks.wait_for_late_ones(Instant::now() + Duration::from_secs(3600));
    }

    /// Its socket may lie on a file system that hangs: no lock is held meanwhile.
    #[test]
    fn a_disk_that_starts_is_waited_for_at_the_end_and_for_a_while_only() {
        let disks = Disks::default();
        let number = disks.begin("slow".into());
        assert!(disks.begin_start(number));
        assert_eq!(disks.opening(), ["slow"]);
        assert!(disks.stop().unwrap().is_empty());
        disks.wait_for_late_ones(Instant::now() + Duration::from_millis(1));
        std::thread::scope(|scope| {
            scope.spawn(|| disks.give_up(number));
            disks.wait_for_late_ones(Instant::now() + Duration::from_secs(3600));
        });
    }

    /// It was nowhere in `stats`, and its line in the log did not name it.
    #[test]
    fn a_disk_that_cannot_be_opened_is_known_by_its_name_and_the_reason() {
        let disks = Disks::default();
        let number = disks.begin("vm2".into());
        disks.fail(
            Some("vm2".into()),
            &Error::invalid("/images/vm2.raw", "no such file", "make it"),
        );
        disks.give_up(number);
        let [failed] = &disks.failed()[..] else { panic!("one disk") };
        assert_eq!(failed.name.as_deref(), Some("vm2"));
        assert_eq!([&failed.what, &failed.why], ["/images/vm2.raw", "no such file"]);
    }

    /// The failure of the only disk was told to nobody when a signal came just then.
    #[test]
    fn a_daemon_ends_because_of_a_signal_or_because_nothing_can_be_served() {
        let [stopped, failed] = [(); 2].map(|()| Disks::default());
        assert!(stopped.stop().is_some() && !stopped.end_if_empty() && stopped.stop().is_some());
        assert!(failed.end_if_empty() && failed.stop().is_none() && failed.end_if_empty());
    }
}
