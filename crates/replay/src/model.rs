//! An image on a modelled drive, and the schedule of the guest, the image's upkeep and the drive on
//! one thread.

use std::cell::{RefCell, RefMut};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, anyhow, bail, ensure};
use flowstone_block::{NextLook, SECTOR_BYTES, TimeSource as _, format_size};
use flowstone_image::{CreateOptions, Upkeep, create_in, open_stepped};
use flowstone_memory::reading::Reader;
use flowstone_ssd::{ModelTime, Ssd, SsdFile, SsdOptions, beside, in_charge};

use crate::guest::Guest;
use crate::medium::{Counted, Medium};
use crate::options::ReplayOptions;
use crate::stack::Stack;

/// Name of the image in messages.
pub const NAME: &str = "the image";

/// An image on a modelled drive.
pub struct Model {
    // Its queue is dropped first.
    guest: Rc<RefCell<Guest>>,
    upkeep: Box<dyn Upkeep>,
    stack: Stack,
    ssd: Ssd,
}

impl Model {
    /// Makes an image of a disk of this size on a new drive, whose file may take all of it, and a
    /// guest with at most `slots` requests in flight.
    pub fn new(
        options: &ReplayOptions,
        create: &CreateOptions,
        disk_bytes: u64,
        file_bytes: u64,
        slots: usize,
    ) -> Result<Self> {
        let SsdOptions { unit_bytes: unit, offset_bytes: offset, .. } = options.ssd;
        let drive_bytes = file_bytes + offset.next_multiple_of(unit);
        if let Some(reading) = Reader::of_this_process().read() {
            check_memory(drive_bytes, &options.ssd, reading.available)?;
        }
        let ssd = Ssd::new(drive_bytes, options.ssd).map_err(|why| anyhow!(why))?;
        let file = ssd.file(file_bytes).map_err(|why| anyhow!(why))?;
        create_in(NAME, &file, options.format, disk_bytes, create)?;
        Self::open(options, ssd, file, disk_bytes, slots)
    }

    /// The same with an existing image in a file of the drive.
    pub fn open(
        options: &ReplayOptions,
        ssd: Ssd,
        file: SsdFile,
        disk_bytes: u64,
        slots: usize,
    ) -> Result<Self> {
        let file = Box::new(file);
        let (image, upkeep) = open_stepped(NAME, file, options.format, &options.image)?;
        let stack = Stack::new(image, options.cache, options.seed, ssd.time().now())?;
        let (channel, _) = stack.queue(slots)?;
        let guest = Guest::new(channel, disk_bytes / SECTOR_BYTES, slots);
        Ok(Self { guest: Rc::new(RefCell::new(guest)), upkeep, stack, ssd })
    }

    /// Returns the image.
    #[cfg(test)]
    pub fn image(&self) -> Arc<dyn flowstone_image::Image> {
        Arc::clone(self.stack.image())
    }
}

impl Medium for Model {
    fn guest(&self) -> RefMut<'_, Guest> {
        self.guest.borrow_mut()
    }

    fn now(&self) -> Instant {
        self.ssd.time().now()
    }

    fn turn(&mut self) -> Result<()> {
        let time = self.ssd.time();
        self.stack.tell_time(time.now());
        if self.upkeep.is_due() {
            let (guest, time) = (Rc::clone(&self.guest), Arc::clone(time));
            beside(
                move |until| go_on(&mut guest.borrow_mut(), &time, until),
                || {
                    self.upkeep.turn();
                },
            );
            return Ok(());
        }
        let next = self.upkeep.next();
        if in_charge(|| step(&mut self.guest.borrow_mut(), time, next)) || self.upkeep.is_due() {
            return Ok(());
        }
        if let Some(next) = next {
            time.advance(next);
            return Ok(());
        }
        bail!("nothing moves any more: a bug of this program; report how to get here")
    }

    fn count(&self) -> Counted {
        let tally = self.ssd.tally();
        Counted {
            at: self.now(),
            host_bytes: Some(tally.host_bytes),
            punches: tally.punches,
            drive: Some(tally),
            hits: self.stack.hits(),
        }
    }

    fn erases(&self) -> Option<(f64, u32)> {
        Some(self.ssd.erases())
    }
}

/// Lets the guest make one step, or advances the time to its next step, if that is not after
/// `until`. Returns whether either was possible.
fn step(guest: &mut Guest, time: &ModelTime, until: Option<Instant>) -> bool {
    if guest.turn(time.now()) {
        return true;
    }
    match guest.next_look() {
        NextLook::Now => true,
        NextLook::At(at) if until.is_none_or(|until| at <= until) => {
            time.advance(at);
            true
        }
        NextLook::At(_) | NextLook::OnWake => false,
    }
}

/// Runs the guest until `until`, or, without a time, for one step.
fn go_on(guest: &mut Guest, time: &ModelTime, until: Option<Instant>) -> bool {
    let Some(until) = until else { return step(guest, time, None) };
    while step(guest, time, Some(until)) {}
    time.advance(until);
    true
}

/// Refuses a drive whose model would exceed the available memory.
pub fn check_memory(drive_bytes: u64, ssd: &SsdOptions, available: u64) -> Result<()> {
    let needed = Ssd::memory_bytes(drive_bytes, ssd);
    ensure!(
        needed <= available,
        "a model of a drive of {} takes {} of memory at least, and {} are available; give a smaller \
         --size",
        format_size(drive_bytes),
        format_size(needed),
        format_size(available)
    );
    Ok(())
}
