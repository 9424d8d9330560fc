//! The medium of a replay: images on a model, or one on a file or a device of this host.

use std::cell::RefCell;
use std::time::Instant;

use anyhow::{Result, bail};
use flowstone_block::Class;
use flowstone_cache::CacheCount;
use flowstone_ssd::Tally;

use crate::guest::{Asked, Guest};

/// Requests between two progress reports.
const TOLD_EVERY: u64 = 1 << 14;

/// Counts of the activity below the guests.
pub struct Counted {
    /// The time of the counts.
    pub at: Instant,
    /// Bytes written to the images' files, if known.
    pub host_bytes: Option<u64>,
    /// Calls that punched holes into the files.
    pub punches: u64,
    /// Activity of a modelled drive.
    pub drive: Option<Tally>,
    /// Blocks read from a cache and from below it, by class.
    pub hits: Option<[CacheCount; Class::ALL.len()]>,
}

/// Images with their guests, ready to run.
pub trait Medium {
    /// Returns the guests, one for each image.
    fn guests(&self) -> &[RefCell<Guest>];

    /// Returns the time on the medium's clock.
    fn now(&self) -> Instant;

    /// Makes one step.
    ///
    /// # Errors
    /// If no step is possible.
    fn turn(&mut self) -> Result<()>;

    /// Returns the counts so far.
    fn count(&self) -> Counted;

    /// Returns the mean and the greatest number of erases of a model's erase blocks.
    fn erases(&self) -> Option<(f64, u32)> {
        None
    }

    /// Returns the closed segments with blocks of the disks, of log images on a model.
    fn segments_of_data(&self) -> Option<u32> {
        None
    }

    /// Returns the counts of all guests together.
    fn asked(&self) -> Asked {
        let of_each = self.guests().iter().map(|guest| guest.borrow().asked());
        of_each.reduce(|sum, one| sum.and(&one)).unwrap_or_default()
    }

    /// Runs until each guest has submitted this many requests of its load, or is at the end of it.
    /// Reports progress, the requests of all, at intervals.
    ///
    /// # Errors
    /// If a request fails.
    fn run(&mut self, until: u64, progress: &mut dyn FnMut(u64)) -> Result<()> {
        let mut told = 0;
        self.guests().iter().for_each(|guest| guest.borrow_mut().stop_at(until));
        while !have_stopped(self.guests())? {
            let done = self.guests().iter().map(|guest| guest.borrow().of_load()).sum::<u64>();
            if done / TOLD_EVERY != told {
                told = done / TOLD_EVERY;
                progress(done);
            }
            self.turn()?;
        }
        Ok(())
    }
}

/// Returns whether all guests have stopped. If a request has failed, all are stopped, and that is
/// the error.
fn have_stopped(guests: &[RefCell<Guest>]) -> Result<bool> {
    let Some(why) = guests.iter().find_map(|guest| guest.borrow().failure()) else {
        return Ok(guests.iter().all(|guest| guest.borrow_mut().has_stopped()));
    };
    guests.iter().for_each(|guest| guest.borrow_mut().stop_at(0));
    // Requests in flight complete first: dropping a queue waits for them.
    if guests.iter().all(|guest| guest.borrow().is_idle()) {
        bail!("a request failed: {why}");
    }
    Ok(false)
}
