//! Images on a modelled drive, and the schedule of the guests, the images' upkeep and the drive on
//! one thread.
//!
//! Guests have a step in turn. The images' upkeep has turns, too, one image at a time: while it
//! waits for the drive, all guests go on.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, anyhow, bail, ensure};
use flowstone_block::{Class, NextLook, TimeSource as _, format_size};
use flowstone_cache::CacheCount;
use flowstone_formats::{CreateOptions, create_in, open_stepped};
use flowstone_image::{Format, Upkeep};
use flowstone_memory::reading::Reader;
use flowstone_ssd::{ModelTime, Ssd, SsdFile, SsdOptions, beside, in_charge};

use crate::guest::Guest;
use crate::kinds;
use crate::medium::{Counted, Medium};
use crate::options::ReplayOptions;
use crate::stack::Stack;

/// Name of the image in messages.
pub const NAME: &str = "the image";

/// Images on a modelled drive.
pub struct Model {
    // Their queues are dropped first.
    guests: Rc<[RefCell<Guest>]>,
    disks: Vec<Disk>,
    /// The disk that is asked first whether upkeep is due.
    next_disk: usize,
    ssd: Ssd,
}

/// An image, and its upkeep.
struct Disk {
    upkeep: Box<dyn Upkeep>,
    stack: Stack,
}

/// Returns the size of a drive for the images' files, each of `file_bytes`.
pub fn drive_bytes(options: &ReplayOptions, file_bytes: u64) -> u64 {
    let SsdOptions { unit_bytes: unit, offset_bytes: offset, .. } = options.ssd;
    file_bytes * options.images as u64 + offset.next_multiple_of(unit)
}

impl Model {
    /// Makes images of disks of this size on a new drive, whose files, one behind the other, may
    /// take all of it, and guests with at most `slots` requests in flight each.
    pub fn new(
        options: &ReplayOptions,
        create: &CreateOptions,
        disk_bytes: u64,
        file_bytes: u64,
        slots: usize,
    ) -> Result<Self> {
        let drive_bytes = drive_bytes(options, file_bytes);
        if let Some(reading) = Reader::of_this_process().read() {
            check_memory(drive_bytes, &options.ssd, reading.available)?;
        }
        let ssd = Ssd::new(drive_bytes, options.ssd).map_err(|why| anyhow!(why))?;
        if options.format == Format::Log {
            ssd.set_labeller(kinds::label);
        }
        let make = |_| -> Result<_> {
            let file = ssd.file(file_bytes).map_err(|why| anyhow!(why))?;
            create_in(NAME, &file, options.format, disk_bytes, create)?;
            Ok(file)
        };
        let files = (0..options.images).map(make).collect::<Result<_>>()?;
        Self::open(options, ssd, files, slots)
    }

    /// The same with existing images in files of the drive.
    pub fn open(
        options: &ReplayOptions,
        ssd: Ssd,
        files: Vec<SsdFile>,
        slots: usize,
    ) -> Result<Self> {
        let (mut guests, mut disks) = (Vec::new(), Vec::new());
        for (number, file) in files.into_iter().enumerate() {
            let file = Box::new(file);
            let (image, upkeep) = open_stepped(NAME, file, options.format, &options.image)?;
            let seed = options.seed_of(number);
            let stack = Stack::new(image, options.cache, seed, ssd.time().now())?;
            let (channel, _) = stack.queue(slots)?;
            guests.push(RefCell::new(Guest::new(channel, stack.image().geometry(), slots)));
            disks.push(Disk { upkeep, stack });
        }
        Ok(Self { guests: guests.into(), disks, next_disk: 0, ssd })
    }

    /// Returns the number of a disk whose upkeep is due.
    fn due(&self) -> Option<usize> {
        let count = self.disks.len();
        let mut in_turn = (0..count).map(|at| (self.next_disk + at) % count);
        in_turn.find(|at| self.disks[*at].upkeep.is_due())
    }

    /// Returns the images.
    #[cfg(test)]
    pub fn images(&self) -> Vec<Arc<dyn flowstone_image::Image>> {
        self.disks.iter().map(|disk| Arc::clone(disk.stack.image())).collect()
    }
}

impl Medium for Model {
    fn guests(&self) -> &[RefCell<Guest>] {
        &self.guests
    }

    fn now(&self) -> Instant {
        self.ssd.time().now()
    }

    fn turn(&mut self) -> Result<()> {
        let time = self.ssd.time();
        self.disks.iter_mut().for_each(|disk| disk.stack.tell_time(time.now()));
        if let Some(due) = self.due() {
            self.next_disk = due + 1;
            let (guests, time) = (Rc::clone(&self.guests), Arc::clone(time));
            let upkeep = &mut self.disks[due].upkeep;
            beside(
                move |until| go_on(&guests, &time, until),
                || {
                    upkeep.turn();
                },
            );
            return Ok(());
        }
        let next = self.disks.iter().filter_map(|disk| disk.upkeep.next()).min();
        if in_charge(|| step(&self.guests, time, next)) || self.due().is_some() {
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
            hits: hits(&self.disks),
        }
    }

    fn erases(&self) -> Option<(f64, u32)> {
        Some(self.ssd.erases())
    }

    fn segments_of_data(&self) -> Option<u32> {
        let of = |disk: &Disk| disk.stack.image().own_state()?.json["segments_of_data"].as_u64();
        self.disks.iter().map(|disk| of(disk).map(|count| count as u32)).sum()
    }
}

/// Returns the sums of all caches.
fn hits(disks: &[Disk]) -> Option<[CacheCount; Class::ALL.len()]> {
    let of_each = disks.iter().map(|disk| disk.stack.hits());
    let and = |sum: CacheCount, one: CacheCount| CacheCount {
        hits: sum.hits + one.hits,
        misses: sum.misses + one.misses,
    };
    let sums = |sum: [CacheCount; _], one: [CacheCount; _]| {
        std::array::from_fn(|class| and(sum[class], one[class]))
    };
    of_each.reduce(|sum, one| sum.zip(one).map(|(sum, one)| sums(sum, one))).flatten()
}

/// Lets each guest make one step, or advances the time to their next step, if that is not after
/// `until`. Returns whether either was possible.
fn step(guests: &[RefCell<Guest>], time: &ModelTime, until: Option<Instant>) -> bool {
    let now = time.now();
    let turns = guests.iter().filter(|guest| guest.borrow_mut().turn(now));
    if turns.count() > 0 {
        return true;
    }
    let looks = guests.iter().map(|guest| guest.borrow_mut().next_look());
    match looks.fold(NextLook::OnWake, NextLook::min) {
        NextLook::Now => true,
        NextLook::At(at) if until.is_none_or(|until| at <= until) => {
            time.advance(at);
            true
        }
        NextLook::At(_) | NextLook::OnWake => false,
    }
}

/// Runs the guests until `until`, or, without a time, for one step.
fn go_on(guests: &[RefCell<Guest>], time: &ModelTime, until: Option<Instant>) -> bool {
    let Some(until) = until else { return step(guests, time, None) };
    while step(guests, time, Some(until)) {}
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
