//! The medium of a replay: an image on a model, or on a file or a device of this host.

use std::cell::RefMut;
use std::time::Instant;

use anyhow::{Result, bail};
use flowstone_block::Class;
use flowstone_cache::CacheCount;
use flowstone_ssd::Tally;

use crate::guest::Guest;

/// Requests between two progress reports.
const TOLD_EVERY: u64 = 1 << 14;

/// Counts of the activity below the guest.
pub struct Counted {
    /// The time of the counts.
    pub at: Instant,
    /// Bytes written to the image's file, if known.
    pub host_bytes: Option<u64>,
    /// Calls that punched holes into the file.
    pub punches: u64,
    /// Activity of a modelled drive.
    pub drive: Option<Tally>,
    /// Blocks read from a cache and from below it, by class.
    pub hits: Option<[CacheCount; Class::ALL.len()]>,
}

/// An image with its guest, ready to run.
pub trait Medium {
    /// Returns the guest.
    fn guest(&self) -> RefMut<'_, Guest>;

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

    /// Runs until this many requests have been submitted, or the load is at its end. Reports
    /// progress at intervals.
    ///
    /// # Errors
    /// If a request fails.
    fn run(&mut self, until: u64, progress: &mut dyn FnMut(u64)) -> Result<()> {
        let mut told = 0;
        self.guest().stop_at(until);
        loop {
            let mut guest = self.guest();
            let done = guest.asked().requests;
            // Requests in flight complete first: dropping a queue waits for them.
            let failure = guest.give_up_if_failed().map(ToOwned::to_owned);
            match failure {
                Some(why) if guest.is_idle() => bail!("a request failed: {why}"),
                None if done >= until || guest.is_done() => return Ok(()),
                _ => drop(guest),
            }
            if done / TOLD_EVERY != told {
                told = done / TOLD_EVERY;
                progress(done);
            }
            self.turn()?;
        }
    }
}
