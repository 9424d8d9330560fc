//! Removal of a disk with everything that belongs to it.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use flowstone_block::{Error, lock, mutated};
use flowstone_control::{Event, Failure, Refused};

use super::{Disks, Entry, State, Table};
use crate::config::DiskConfig;
use crate::disk::Disk;

/// Time between two checks whether others still use a disk: initially, and at most.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
const LOOK_AGAIN_MAX: Duration = Duration::from_millis(100);

/// Disks removed while being opened: each has a thread and an open image until its lock is free or
/// its host answers.
pub(super) const CANCELLED_MAX: usize = 32;

/// Failed ends that are kept for those who wait for one.
const FAILED_ENDS_MAX: usize = 32;

/// The remaining work of a removal.
pub enum Removal {
    /// None: the disk is gone.
    Done,
    /// The caller [ends](Disks::end) the disk.
    Stop(u32, Arc<Disk>),
    /// The caller [waits](Disks::gone_by) for the thread that stops it.
    Wait(Leaving),
}

/// A disk that another thread is stopping.
#[derive(Clone, Copy)]
pub struct Leaving {
    number: u32,
    count: u64,
}

impl Disks {
    /// Checks whether [`begin_removal`](Self::begin_removal) would be refused.
    pub fn check_removal(&self, name: &str, force: bool) -> Result<(), Refused> {
        lock(&self.table).removable(name, force).map(drop)
    }

    /// Begins the removal of the disk of this name. It is refused while a monitor is connected,
    /// unless `force` is set.
    pub fn begin_removal(&self, name: &str, force: bool) -> Result<Removal, Refused> {
        let mut table = lock(&self.table);
        let number = table.removable(name, force)?;
        let entry = table.known.get_mut(&number).expect("just seen");
        let leaving = Leaving { number, count: entry.count };
        let removal = match &entry.state {
            State::Serving(disk) => Removal::Stop(number, Arc::clone(disk)),
            State::Starting | State::Stopping => Removal::Wait(leaving),
            State::Opening | State::Cancelled | State::Failed(_) => Removal::Done,
        };
        match entry.state {
            State::Opening => {
                entry.state = State::Cancelled;
                self.events.tell(name, Event::Removed);
            }
            State::Failed(_) => self.forget(&mut table, number),
            _ => entry.state = State::Stopping,
        }
        drop(table);
        self.settled.notify_all();
        Ok(removal)
    }

    /// Stops a disk, waits until nothing else uses it, and closes it: its number may be reused. The
    /// disk goes, too, if the stop panics: others wait for that.
    pub fn end<D>(
        &self,
        number: u32,
        disk: Arc<D>,
        stop: impl FnOnce(&D),
        close: impl FnOnce(D) -> flowstone_block::Result<()>,
    ) -> flowstone_block::Result<()> {
        let _gone = GivesUp { disks: self, number };
        let stopped = catch_unwind(AssertUnwindSafe(|| stop(&disk)));
        let disk = last_of(disk);
        match stopped {
            Ok(()) => {
                let closed = close(disk);
                lock(&self.table).note_end(number, &closed);
                closed
            }
            Err(panic) => {
                drop(disk);
                resume_unwind(panic)
            }
        }
    }

    /// Waits until a disk that is being stopped is gone, or a deadline. Returns whether it was
    /// closed in order; `None` if it is not gone.
    pub fn gone_by(&self, leaving: Leaving, until: Instant) -> Option<flowstone_block::Result<()>> {
        let (table, left) = (lock(&self.table), until.saturating_duration_since(Instant::now()));
        let waited = self.settled.wait_timeout_while(table, left, |table| table.has(leaving));
        let (table, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        let failed = table.failed_ends.iter().find(|(count, _)| *count == leaving.count);
        (!waited.timed_out()).then(|| failed.map_or(Ok(()), |(_, it)| Err(it.clone().into_error())))
    }

    /// Returns whether a disk that is being stopped has the name, socket or image of a new one.
    pub fn replaces_one_that_leaves(&self, new: &DiskConfig) -> bool {
        lock(&self.table).stopping().any(|entry| {
            let (old, image) = (&entry.config, &new.stack.image);
            let has_its_image = image.is_some() && *image == old.stack.image;
            entry.name == new.name() || new.socket == old.socket || has_its_image
        })
    }

    /// Returns the names of the disks that are being stopped.
    pub fn stopping(&self) -> BTreeSet<String> {
        lock(&self.table).stopping().map(|entry| entry.name.clone()).collect()
    }
}

/// Gives up a disk when it is dropped.
struct GivesUp<'a> {
    disks: &'a Disks,
    number: u32,
}

impl Drop for GivesUp<'_> {
    fn drop(&mut self) {
        self.disks.give_up(self.number);
    }
}

/// Waits until nothing else uses a disk. A report, the resource monitor or a resize may use it for
/// a moment.
pub fn last_of<D>(mut disk: Arc<D>) -> D {
    let mut pause = LOOK_AGAIN;
    loop {
        disk = match Arc::try_unwrap(disk) {
            Ok(disk) => return disk,
            Err(shared) => shared,
        };
        sleep(pause);
        pause = (2 * pause).min(LOOK_AGAIN_MAX);
    }
}

impl Table {
    /// Notes how the end of a disk went, for those who wait for it: a removal, and the end of the
    /// daemon, if that waits.
    pub(super) fn note_end(&mut self, number: u32, ended: &flowstone_block::Result<()>) {
        let (Err(error), Some(entry)) = (ended, self.known.get(&number)) else { return };
        let count = entry.count;
        let is_late = mutated("daemon.stop.forgets-late-failures", self.end.is_some(), false);
        if is_late {
            self.late_failure.get_or_insert_with(|| Failure::of(error));
        }
        if self.failed_ends.len() == FAILED_ENDS_MAX {
            self.failed_ends.pop_front();
        }
        self.failed_ends.push_back((count, Failure::of(error)));
    }

    fn stopping(&self) -> impl Iterator<Item = &Entry> {
        self.known.values().filter(|entry| matches!(entry.state, State::Stopping))
    }

    fn has(&self, leaving: Leaving) -> bool {
        self.known.get(&leaving.number).is_some_and(|entry| entry.count == leaving.count)
    }

    /// Returns the number of the disk of this name, if it may be removed.
    fn removable(&self, name: &str, force: bool) -> Result<u32, Refused> {
        let what = || format!("disk remove {name}");
        let mut visible = self.visible();
        let Some((number, entry)) = visible.find(|(_, entry)| entry.name == name) else {
            let advice = "see `flowstone disk list` for the names";
            return Err(Refused::unknown(Error::invalid(what(), "no disk is called that", advice)));
        };
        match &entry.state {
            State::Serving(disk) if disk.shared.is_connected() && !force => {
                let advice = "detach it, or add --force to hang up on it";
                Err(Error::busy(what(), "a guest is attached", advice).into())
            }
            State::Opening if self.too_many_are_cancelled() => {
                let why = format!("{CANCELLED_MAX} removed disks are still being opened");
                let advice = "see the log for what those wait for, and try again later";
                Err(Error::busy(what(), why, advice).into())
            }
            _ => Ok(number),
        }
    }

    fn too_many_are_cancelled(&self) -> bool {
        let all = self.known.values();
        let cancelled = all.filter(|entry| matches!(entry.state, State::Cancelled)).count();
        let are_too_many = cancelled >= CANCELLED_MAX;
        mutated("daemon.disks.removes-any-number-that-open", are_too_many, false)
    }
}
