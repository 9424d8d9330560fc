//! What a load is run on: an image on a model, or on a file or a device of this host.

use std::cell::RefMut;
use std::time::Instant;

use anyhow::{Result, bail};
use flowstone_block::Class;
use flowstone_cache::CacheCount;
use flowstone_ssd::Tally;

use crate::guest::Guest;

/// Requests between two reports of progress.
const TOLD_EVERY: u64 = 1 << 14;

/// What has happened below the guest so far.
pub struct Counted {
    /// When.
    pub at: Instant,
    /// Written to the image's file, in bytes, where that is known.
    pub host_bytes: Option<u64>,
    /// Calls that gave space of it back.
    pub punches: u64,
    /// What a model of a drive has done.
    pub drive: Option<Tally>,
    /// Blocks that were read from a cache, and past it, by class.
    pub hits: Option<[CacheCount; Class::ALL.len()]>,
}

/// See the module.
pub trait Medium {
    /// Who makes the requests.
    fn guest(&self) -> RefMut<'_, Guest>;

    /// The time by which requests take time.
    fn now(&self) -> Instant;

    /// Lets something happen.
    ///
    /// # Errors
    /// If nothing can.
    fn turn(&mut self) -> Result<()>;

    /// What has happened so far.
    fn count(&self) -> Counted;

    /// How often the erase blocks of a model were erased: on average, and the one that was most
    /// often.
    fn erases(&self) -> Option<(f64, u32)> {
        None
    }

    /// Goes on until so many requests have been made, or all have come back. Tells every now and
    /// then how many there were.
    ///
    /// # Errors
    /// If a request fails.
    fn run(&mut self, until: u64, progress: &mut dyn FnMut(u64)) -> Result<()> {
        let mut told = 0;
        self.guest().stop_at(until);
        loop {
            let mut guest = self.guest();
            let done = guest.asked().requests;
            // What is on its way comes back first: a queue that goes waits for it.
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
