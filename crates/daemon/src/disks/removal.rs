//! A disk leaves: nothing of it stays.

use std::sync::{Arc, PoisonError};
use std::thread::sleep;
use std::time::Duration;

use flowstone_block::{Error, mutant};

use super::{Disks, State, Table};
use crate::control::Refused;
use crate::disk::Disk;
use crate::events::Event;

/// Time between two looks whether others have let go of a disk, at first and at most.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
const LOOK_AGAIN_MAX: Duration = Duration::from_millis(100);

/// Disks that have been removed and are still being opened: each has a thread, and its image open,
/// for as long as that is locked, or its host hangs.
pub(super) const CANCELLED_MAX: usize = 32;

/// What is to be done to remove a disk.
pub enum Removal {
    /// Nothing: it is gone.
    Done,
    /// To stop it, and to [let it go](Disks::let_go) under its number.
    Stop(u32, Arc<Disk>),
    /// To [wait](Disks::wait_until_gone) for the thread that stops it.
    Wait(Leaving),
}

/// A disk that another thread stops.
#[derive(Clone, Copy)]
pub struct Leaving {
    number: u32,
    count: u64,
}

impl Disks {
    /// Whether [`begin_removal`](Self::begin_removal) would refuse.
    pub fn check_removal(&self, name: &str, force: bool) -> Result<(), Refused> {
        self.table().removable(name, force).map(drop)
    }

    /// The disk of this name is to be removed. One that a monitor is connected to is refused,
    /// unless that is what is meant by `force`.
    pub fn begin_removal(&self, name: &str, force: bool) -> Result<Removal, Refused> {
        let mut table = self.table();
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

    /// Waits until all others have let go of a disk that has been stopped, and then does so, too:
    /// its image is free, and its number may be used again.
    pub fn let_go(&self, number: u32, mut disk: Arc<Disk>) {
        // A report, the resource monitor or a resize may have it for a moment.
        let mut pause = LOOK_AGAIN;
        loop {
            disk = match Arc::try_unwrap(disk) {
                Ok(last) => {
                    drop(last);
                    return self.give_up(number);
                }
                Err(disk) => disk,
            };
            sleep(pause);
            pause = (2 * pause).min(LOOK_AGAIN_MAX);
        }
    }

    /// Waits until a disk that leaves has gone.
    pub fn wait_until_gone(&self, leaving: Leaving) {
        let mut table = self.table();
        let is_there = |table: &Table| {
            table.known.get(&leaving.number).is_some_and(|entry| entry.count == leaving.count)
        };
        while is_there(&table) {
            table = self.settled.wait(table).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Table {
    /// The number of the disk of this name, if it may be removed.
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
        cancelled >= CANCELLED_MAX && !mutant("daemon.disks.removes-any-number-that-open")
    }
}
