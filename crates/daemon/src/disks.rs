//! The disks of a daemon, from the start of opening until the daemon stops.
//!
//! Commands look a disk up and release the lock: nothing else waits for work on a disk.

mod find;
mod listing;
mod refusal;
mod removal;

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use flowstone_block::{Error, Result, lock, mutated};
use flowstone_control::{Event, Events, Failure, Origin};
use flowstone_image::Progress;
use serde::Serialize;
use serde_json::json;

use crate::config::{DiskConfig, Keys};
use crate::disk::Disk;

use self::refusal::Refusal;
pub use self::removal::{Leaving, Removal, last_of};

/// The error of a thread that has panicked.
pub fn died(what: &str) -> Error {
    Error::host(what, "its thread has panicked", "report this as a defect")
}

/// All disks by number. A number is reused once nothing of its disk remains.
#[derive(Default)]
pub struct Disks {
    table: Mutex<Table>,
    /// Signalled when a starting disk is serving or has failed, when a disk is removed, and when
    /// the daemon stops.
    settled: Condvar,
    /// Receives the events of all disks.
    pub events: Arc<Events>,
}

#[derive(Default)]
struct Table {
    known: BTreeMap<u32, Entry>,
    /// Requested disks that cannot exist.
    refused: Vec<Refusal>,
    /// Number of entries ever made.
    count: u64,
    end: Option<End>,
    /// Disks that could not be closed in order, by their serial numbers.
    failed_ends: VecDeque<(u64, Failure)>,
    /// The first of them since the daemon was told to stop.
    late_failure: Option<Failure>,
}

/// A disk that is not served, with the reason.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
pub struct Failed {
    /// The configured name; `None` if the name is what is wrong.
    pub name: Option<String>,
    #[serde(flatten)]
    failure: Failure,
}

impl Failed {
    fn of(name: Option<String>, error: &Error) -> Self {
        Self { name, failure: Failure::of(error) }
    }
}

/// Why a daemon ends; the first reason stays.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// It was told to stop. No more disks are opened.
    Stop,
    /// No disk could be served.
    NothingToServe,
}

/// A known disk.
struct Entry {
    name: String,
    config: Arc<DiskConfig>,
    origin: Origin,
    /// Serial number among all entries ever made.
    count: u64,
    state: State,
    /// Recovery progress while its image is being opened.
    progress: Progress,
}

enum State {
    /// Its image waits for a lock, or is being recovered.
    Opening,
    /// It is about to listen: a guest may be served soon.
    Starting,
    Serving(Arc<Disk>),
    /// It is being stopped and closed.
    Stopping,
    Failed(Failed),
    /// It was removed while being opened: only its number is still in use.
    Cancelled,
}

/// Result of a request to add a disk.
#[derive(Debug, PartialEq, Eq)]
pub enum Begun {
    /// The disk is to be opened under this number.
    Opens(u32),
    /// The same disk already exists.
    IsThere,
}

impl Disks {
    /// Registers a disk to be opened; no other disk may use its name and socket from then on. A
    /// failed disk may be tried again.
    pub fn begin(&self, config: &DiskConfig, origin: Origin) -> Result<Begun> {
        let name = config.name();
        let mut table = lock(&self.table);
        let busy = |why: String, advice| Err(Error::busy(format!("disk {name}"), why, advice));
        if table.end.is_some() {
            return busy("the daemon is stopping".into(), "ask the next one");
        }
        let mut number = table.free_number();
        for (of, other) in table.visible() {
            let is_same = !config.keys.is_empty() && other.config.keys == config.keys;
            match (&other.state, other.name == name) {
                (State::Failed(_), true) => number = of,
                (State::Stopping, true) => {
                    return busy("it is being removed".into(), "try again later");
                }
                (_, true) if is_same => return Ok(Begun::IsThere),
                (_, true) => {
                    let why = "there is another disk of that name";
                    return busy(why.into(), "remove that, or choose another name");
                }
                (_, false) if other.config.socket == config.socket => {
                    let why =
                        format!("disk {} has the socket {}", other.name, config.socket.display());
                    return busy(why, "choose another one");
                }
                (_, false) => {}
            }
        }
        table.count += 1;
        let (config, count) = (Arc::new(config.clone()), table.count);
        if !table.known.contains_key(&number) {
            self.events.tell(&name, Event::Added { origin });
        }
        self.events.tell(&name, Event::Opening);
        let (state, progress) = (State::Opening, Progress::default());
        let entry = Entry { name, config, origin, count, state, progress };
        table.known.insert(number, entry);
        Ok(Begun::Opens(number))
    }

    /// Returns the progress of opening the disk with this number.
    pub fn progress_of(&self, number: u32) -> Progress {
        let table = lock(&self.table);
        table.known.get(&number).map(|entry| entry.progress.clone()).unwrap_or_default()
    }

    /// Marks a disk as about to listen. Returns `false` if it is too late: the daemon is stopping,
    /// or the disk was removed.
    pub fn begin_start(&self, number: u32) -> bool {
        let mut table = lock(&self.table);
        if table.end.is_some() {
            return false;
        }
        match table.known.get_mut(&number) {
            Some(entry) if matches!(entry.state, State::Opening) => entry.state = State::Starting,
            _ => return false,
        }
        true
    }

    /// Marks a disk as serving. Returns the disk if it is too late: the caller stops it, then
    /// [gives it up](Self::give_up).
    pub fn serve(&self, number: u32, disk: Disk) -> std::result::Result<(), Box<Disk>> {
        let mut table = lock(&self.table);
        let is_over = table.end.is_some();
        match table.known.get_mut(&number).map(|entry| &mut entry.state) {
            Some(state @ State::Starting) if !is_over => {
                let socket = disk.socket.display().to_string();
                self.events.tell(&disk.name, Event::Serving { socket: &socket });
                *state = State::Serving(Arc::new(disk));
            }
            _ => return Err(Box::new(disk)),
        }
        drop(table);
        self.settled.notify_all();
        Ok(())
    }

    /// Waits until no disk is being opened; after `patience`, until one is serving. Returns the
    /// names of those still being opened, or `None` if the daemon stops.
    pub fn wait_for_most(&self, patience: Duration) -> Option<Vec<String>> {
        let deadline = Instant::now() + patience;
        let mut table = lock(&self.table);
        while table.end.is_none() {
            let late: Vec<String> = table.opening().map(str::to_owned).collect();
            let left = deadline.saturating_duration_since(Instant::now());
            let is_late =
                mutated("daemon.serve.is-ready-with-the-last-disk", left.is_zero(), false);
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

    /// Runs `act`, which must be short, unless the daemon is stopping. Stopping cannot begin
    /// meanwhile.
    pub fn unless_stopping(&self, act: impl FnOnce()) {
        let table = lock(&self.table);
        if table.end.is_none() {
            act();
        }
    }

    /// Opens the disk with this number and name. If it cannot be opened, also because of a panic,
    /// it is marked as failed: the daemon's end waits for starting disks.
    pub fn open(&self, number: u32, name: &str, open: impl FnOnce() -> Result<()>) -> Result<()> {
        let opened = catch_unwind(AssertUnwindSafe(open));
        let opened = opened.unwrap_or_else(|_| Err(died(&format!("disk {name}"))));
        let mut table = lock(&self.table);
        let is_over = table.end.is_some();
        match table.known.get_mut(&number).map(|entry| &mut entry.state) {
            // Everything that was opened has been closed by now.
            Some(state) if is_over || matches!(state, State::Cancelled | State::Stopping) => {
                table.note_end(number, &opened);
                self.forget(&mut table, number);
            }
            Some(state @ (State::Opening | State::Starting)) => {
                if let Err(error) = &opened {
                    let failed = Failed::of(Some(name.to_owned()), error);
                    self.events.tell(name, Event::Failed { error: json!(failed) });
                    *state = State::Failed(failed);
                }
            }
            _ => {}
        }
        drop(table);
        self.settled.notify_all();
        opened
    }

    /// Removes the disk with this number: it could not be opened, or it is too late.
    pub fn give_up(&self, number: u32) {
        self.forget(&mut lock(&self.table), number);
        self.settled.notify_all();
    }

    /// Removes an entry of which nothing remains. A disk removed while being opened was reported as
    /// removed then.
    fn forget(&self, table: &mut Table, number: u32) {
        let entry = table.known.remove(&number);
        if let Some(entry) = entry.filter(|entry| !matches!(entry.state, State::Cancelled)) {
            self.events.tell(&entry.name, Event::Removed);
        }
    }

    /// Returns the disks that could not be opened.
    pub fn failed(&self) -> Vec<Failed> {
        let table = lock(&self.table);
        let failed = table.known.values().filter_map(Entry::failed);
        table.refused().map(|it| it.failed).chain(failed.cloned()).collect()
    }

    /// Returns the keys of the disk of this name, as configured.
    pub fn keys_of(&self, name: &str) -> Keys {
        let table = lock(&self.table);
        let entry = table.visible().find(|(_, entry)| entry.name == name);
        entry.map(|(_, entry)| entry.config.keys.clone()).unwrap_or_default()
    }

    /// Returns the disks being served.
    pub fn serving(&self) -> Vec<Arc<Disk>> {
        lock(&self.table).serving().cloned().collect()
    }

    /// Returns the names of the disks being opened.
    pub fn opening(&self) -> Vec<String> {
        lock(&self.table).opening().map(str::to_owned).collect()
    }

    /// Ends the daemon if no disk is served or being opened, unless it was told to stop. Returns
    /// whether it ends for that reason.
    pub fn end_if_empty(&self) -> bool {
        let mut table = lock(&self.table);
        let is_empty = table.known.values().all(|entry| entry.failed().is_some());
        if is_empty && table.end.is_none() {
            table.end = Some(End::NothingToServe);
        }
        table.end == Some(End::NothingToServe)
    }

    /// Stops the daemon: returns the served disks; no other one is served from then on. `None` if
    /// the daemon has ended for lack of disks.
    pub fn stop(&self) -> Option<Vec<Arc<Disk>>> {
        let mut table = lock(&self.table);
        if *table.end.get_or_insert(End::Stop) == End::NothingToServe {
            return None;
        }
        let served = table.serving().cloned().collect();
        table.known.retain(|_, entry| entry.is_waited_for());
        drop(table);
        self.settled.notify_all();
        Some(served)
    }

    /// After [`stop`](Self::stop): waits for disks that had begun to listen or to leave, and for
    /// those whose image is marked as in use already; they stop by themselves. Returns the first
    /// error of theirs.
    pub fn wait_for_late_ones(&self) -> Result<()> {
        let are_there = |table: &mut Table| !table.known.is_empty();
        let waited = self.settled.wait_while(lock(&self.table), are_there);
        let failure = waited.unwrap_or_else(PoisonError::into_inner).late_failure.take();
        failure.map_or(Ok(()), |it| Err(it.into_error()))
    }
}

impl Entry {
    /// Returns whether the end of the daemon waits for it; if not, its image is not written any
    /// more.
    fn is_waited_for(&self) -> bool {
        match self.state {
            State::Starting | State::Stopping => true,
            State::Opening | State::Cancelled => {
                let waits = !self.progress.give_up();
                mutated("daemon.stop.leaves-images-that-open", waits, false)
            }
            State::Serving(_) | State::Failed(_) => false,
        }
    }

    fn failed(&self) -> Option<&Failed> {
        match &self.state {
            State::Failed(failed) => Some(failed),
            _ => None,
        }
    }
}

impl Table {
    /// Returns the lowest free number: the tables of the cache and of VMs are as long as the
    /// largest.
    fn free_number(&self) -> u32 {
        (0..).find(|number| !self.known.contains_key(number)).expect("there are fewer disks")
    }

    /// Returns the entries that operators see.
    fn visible(&self) -> impl Iterator<Item = (u32, &Entry)> {
        let known = self.known.iter().map(|(number, entry)| (*number, entry));
        known.filter(|(_, entry)| !matches!(entry.state, State::Cancelled))
    }

    fn serving(&self) -> impl Iterator<Item = &Arc<Disk>> {
        self.known.values().filter_map(|entry| match &entry.state {
            State::Serving(disk) => Some(disk),
            _ => None,
        })
    }

    fn opening(&self) -> impl Iterator<Item = &str> {
        self.known.values().filter_map(|entry| match entry.state {
            State::Opening | State::Starting => Some(&*entry.name),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests;
