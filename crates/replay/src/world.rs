//! Who works when: the guest, the image's upkeep and the drive, on one thread.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, bail};
use flowstone_block::NextLook;
use flowstone_image::{Image, Upkeep};
use flowstone_ssd::{ModelTime, beside, in_charge};
use flowstone_trace::Event;

use crate::guest::{Guest, Pace};

/// Requests between two reports of progress.
const TOLD_EVERY: u64 = 1 << 14;

/// See the module.
pub struct World {
    guest: Rc<RefCell<Guest>>,
    upkeep: Box<dyn Upkeep>,
    /// Upkeep and channel do not keep it.
    #[cfg_attr(not(test), expect(dead_code, reason = "its upkeep and channel work on it"))]
    image: Box<dyn Image>,
    time: Arc<ModelTime>,
}

impl World {
    pub fn new(
        guest: Guest,
        upkeep: Box<dyn Upkeep>,
        image: Box<dyn Image>,
        time: Arc<ModelTime>,
    ) -> Self {
        Self { guest: Rc::new(RefCell::new(guest)), upkeep, image, time }
    }

    /// What is served.
    #[cfg(test)]
    pub fn image(&self) -> &dyn Image {
        &*self.image
    }

    /// What the guest does next.
    pub fn set_load(&mut self, load: impl Iterator<Item = Event> + 'static, pace: Pace) {
        self.guest(|guest| guest.set_load(Box::new(load), pace));
    }

    /// Changes or asks the guest.
    pub fn guest<T>(&mut self, work: impl FnOnce(&mut Guest) -> T) -> T {
        work(&mut self.guest.borrow_mut())
    }

    /// Goes on until so many requests have been made, or all have come back. Tells every now and
    /// then how many there were.
    ///
    /// # Errors
    /// If a request fails.
    pub fn run(&mut self, until: u64, progress: &mut dyn FnMut(u64)) -> Result<()> {
        let mut told = 0;
        self.guest(|guest| guest.stop_at(until));
        loop {
            let mut guest = self.guest.borrow_mut();
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

    fn turn(&mut self) -> Result<()> {
        if self.upkeep.is_due() {
            let (guest, time) = (Rc::clone(&self.guest), Arc::clone(&self.time));
            beside(
                move |until| go_on(&mut guest.borrow_mut(), &time, until),
                || {
                    self.upkeep.turn();
                },
            );
            return Ok(());
        }
        let next = self.upkeep.next();
        if in_charge(|| step(&mut self.guest.borrow_mut(), &self.time, next)) {
            return Ok(());
        }
        if self.upkeep.is_due() {
            return Ok(());
        }
        if let Some(next) = next {
            self.time.advance(next);
            return Ok(());
        }
        bail!("nothing moves any more: a bug of this program; report how to get here")
    }
}

/// The guest does one thing, or time passes until it can; at most until `until`. Returns whether
/// either has happened.
fn step(guest: &mut Guest, time: &ModelTime, until: Option<Instant>) -> bool {
    use flowstone_block::TimeSource as _;
    match guest.turn(time.now()) {
        Ok(()) => true,
        Err(NextLook::At(at)) if until.is_none_or(|until| at <= until) => {
            time.advance(at);
            true
        }
        Err(_) => false,
    }
}

/// The guest goes on until then, or, without a time, until something has happened.
fn go_on(guest: &mut Guest, time: &ModelTime, until: Option<Instant>) -> bool {
    let Some(until) = until else { return step(guest, time, None) };
    while step(guest, time, Some(until)) {}
    time.advance(until);
    true
}
