//! A replay from beginning to end: the drive, the image on it, the load.

use std::ops::{Range, RangeInclusive};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use flowstone_block::{QueueContext, QueueDepth, SECTOR_BYTES, TimeSource as _, format_size};
use flowstone_image::{CreateOptions, Format, LogOptions, create_in, open_stepped};
use flowstone_memory::reading::Reader;
use flowstone_ssd::{Ssd, SsdOptions, Tally};
use flowstone_trace::{Event, Kind, Trace};

use crate::guest::{Asked, Guest, Pace, requests_of};
use crate::load::{BLOCK_BYTES, Generator, Writes};
use crate::report::Report;
use crate::world::World;

/// The image's, in messages.
const NAME: &str = "the image";
/// Requests on their way at most when the trace says when they come.
const DEPTH_MAX: usize = 1024;
/// Blocks of more have no number in the model.
const DISK_BYTES_MAX: u64 = 8 << 40;
/// Requests on their way while the disk is filled.
const FILL_DEPTH: usize = 32;
/// Bytes of a write that fills the disk.
const FILL_BYTES: u64 = 128 << 10;
/// Reserves that a log image may have, in percent.
const RESERVES: RangeInclusive<u32> = 3..=74;
/// A generated load overwrites the disk so often before anything is measured, and so often then.
const WARMUP_TURNS: u64 = 7;
const MEASURED_TURNS: u64 = 4;

/// What a guest does.
#[derive(Clone, Debug)]
pub enum Load {
    /// Writes that are drawn, so many of them if that is said.
    Generated(Generator, Option<u64>),
    /// What a trace says.
    Trace(Trace),
}

/// When requests of a trace are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timing {
    /// As soon as there is room.
    Asap,
    /// When the trace says.
    Trace,
}

/// What is replayed, and on what.
#[derive(Clone, Debug)]
pub struct ReplayOptions {
    /// The guest's load.
    pub load: Load,
    /// Bytes of the guest's disk; the default is where a trace ends.
    pub size: Option<u64>,
    /// Share of the drive that the guest's disk is.
    pub fill: f64,
    /// Format of the image.
    pub format: Format,
    /// Bytes of a log image's segment, and its reserve in percent.
    pub segment_bytes: Option<u64>,
    /// See above.
    pub reserve_percent: Option<u32>,
    /// Whether a log image has a stream for metadata.
    pub split_streams: bool,
    /// The drive.
    pub ssd: SsdOptions,
    /// Requests on their way at once.
    pub iodepth: usize,
    /// When requests are made.
    pub timing: Timing,
    /// Writes before the measured part.
    pub warmup: Option<u64>,
    /// How often a trace is gone through.
    pub passes: u64,
    /// Decides all that is drawn.
    pub seed: u64,
}

/// How far a replay has come: so many of so many requests.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// Replays, and says what came of it.
///
/// # Errors
/// If the options make no sense together, or something fails that should not.
pub fn replay(options: &ReplayOptions, progress: Progress<'_>) -> Result<Report> {
    let mut scene = Scene::set(options)?;
    let before = match &options.load {
        Load::Generated(generator, ops) => {
            scene.run_generated(options, *generator, *ops, progress)?
        }
        Load::Trace(trace) => scene.run_trace(options, trace, progress)?,
    };
    Ok(scene.report(options, &before))
}

/// The drive and what is on it.
struct Scene {
    ssd: Ssd,
    world: World,
    disk_bytes: u64,
    drive_bytes: u64,
    log: Option<LogOptions>,
}

/// What there was when the measured part began.
struct Before {
    asked: Asked,
    tally: Tally,
    at: u64,
}

impl Scene {
    fn set(options: &ReplayOptions) -> Result<Self> {
        ensure!(
            options.fill > 0.0 && options.fill <= 1.0,
            "--fill is a share of the drive, 0 to 1"
        );
        let depths = 1..=DEPTH_MAX;
        ensure!(depths.contains(&options.iodepth), "--iodepth is 1 to {DEPTH_MAX}");
        ensure!(options.passes > 0, "--passes is at least 1");
        let disk_bytes = disk_bytes(options)?;
        let SsdOptions { unit_bytes: unit, offset_bytes: offset, .. } = options.ssd;
        let file_bytes = ((disk_bytes as f64 / options.fill).round() as u64).next_multiple_of(unit);
        let log = match options.format {
            Format::Log => Some(log_options(options, disk_bytes, file_bytes)?),
            Format::Raw | Format::Qcow2 => None,
        };
        let drive_bytes = file_bytes + offset.next_multiple_of(unit);
        if let Some(reading) = Reader::of_this_process().read() {
            check_memory(drive_bytes, &options.ssd, reading.available)?;
        }
        let ssd = Ssd::new(drive_bytes, options.ssd).map_err(|why| anyhow!(why))?;
        let file = ssd.file(file_bytes).map_err(|why| anyhow!(why))?;
        let create = CreateOptions { log: log.unwrap_or_default(), ..CreateOptions::default() };
        create_in(NAME, &file, options.format, disk_bytes, &create)?;
        let (image, upkeep) = open_stepped(NAME, Box::new(file), options.format)?;
        let slots = match options.timing {
            Timing::Trace => DEPTH_MAX,
            Timing::Asap => options.iodepth.max(FILL_DEPTH),
        };
        let channel = image.channel(&QueueContext::alone(QueueDepth(slots as u16))?)?;
        let guest = Guest::new(channel, disk_bytes / SECTOR_BYTES, slots);
        let world = World::new(guest, upkeep, image, Arc::clone(ssd.time()));
        Ok(Self { ssd, world, disk_bytes, drive_bytes, log })
    }

    fn run_generated(
        &mut self,
        options: &ReplayOptions,
        generator: Generator,
        ops: Option<u64>,
        progress: Progress<'_>,
    ) -> Result<Before> {
        let blocks = self.disk_bytes / BLOCK_BYTES;
        let warmup = options.warmup.unwrap_or(WARMUP_TURNS * blocks);
        let all = warmup + ops.unwrap_or(MEASURED_TURNS * blocks);
        let blocks = u32::try_from(blocks).context("the disk is too large")?;
        ensure!(options.timing == Timing::Asap, "a made load has no times; leave --timing out");
        self.world.set_load(fill(0..self.disk_bytes), Pace::Depth(FILL_DEPTH));
        self.world.run(u64::MAX, &mut |_| ())?;
        let writes = Writes::new(generator, blocks, options.seed).take(all as usize);
        self.world.set_load(writes, Pace::Depth(options.iodepth));
        self.measure(warmup, all, progress)
    }

    fn run_trace(
        &mut self,
        options: &ReplayOptions,
        trace: &Trace,
        progress: Progress<'_>,
    ) -> Result<Before> {
        let is_present = |event: &Event| event.kind == Kind::Present;
        let present: Vec<_> = trace.events.iter().filter(|it| is_present(it)).copied().collect();
        let present = present.into_iter().flat_map(|it| fill(it.offset..it.offset + it.bytes));
        self.world.set_load(present, Pace::Depth(FILL_DEPTH));
        self.world.run(u64::MAX, &mut |_| ())?;
        let events = trace.events.iter().filter(|it| !is_present(it));
        let once: Arc<[Event]> = events.copied().flat_map(requests_of).collect();
        ensure!(!once.is_empty(), "the trace has no request");
        let all = once.len() as u64 * options.passes;
        let warmup = requests_to(&once, options.passes, options.warmup.unwrap_or(0))?;
        let has_times = once.iter().all(|event| event.at.is_some());
        ensure!(
            has_times || options.timing == Timing::Asap,
            "the trace has no times; leave --timing out"
        );
        let pace = match options.timing {
            Timing::Asap => Pace::Depth(options.iodepth),
            Timing::Trace => Pace::Trace { start: self.ssd.time().now(), depth: DEPTH_MAX },
        };
        let time = length(&once);
        let passes = (0..options.passes).flat_map(move |pass| {
            let once = Arc::clone(&once);
            let later = time * u32::try_from(pass).unwrap_or(u32::MAX);
            (0..once.len()).map(move |index| {
                let event = once[index];
                Event { at: event.at.map(|at| at + later), ..event }
            })
        });
        self.world.set_load(passes, pace);
        self.measure(warmup, all, progress)
    }

    /// Goes on with the load to its end, and returns what there was after so many requests of it.
    fn measure(&mut self, warmup: u64, all: u64, progress: Progress<'_>) -> Result<Before> {
        let first = self.world.guest(|guest| guest.asked().requests);
        self.world.run(first + warmup, &mut |done| progress(done - first, all))?;
        let asked = self.world.guest(|guest| guest.asked());
        let before = Before { asked, tally: self.ssd.tally(), at: self.ssd.time().passed() };
        self.world.run(u64::MAX, &mut |done| progress(done - first, all))?;
        progress(all, all);
        Ok(before)
    }

    fn report(&mut self, options: &ReplayOptions, before: &Before) -> Report {
        let asked = self.world.guest(|guest| guest.asked()).since(&before.asked);
        let (tally, earlier) = (self.ssd.tally(), &before.tally);
        let flash = tally.flash_since(earlier);
        let blocks = |bytes: u64| bytes as f64 / BLOCK_BYTES as f64;
        let programmed = flash.written + flash.copied;
        let guest = blocks(asked.written);
        let host = blocks(tally.host_bytes - earlier.host_bytes);
        let device = blocks(programmed * options.ssd.unit_bytes);
        let per = |one: f64, other: f64| (other > 0.0).then(|| one / other);
        let (erases_mean, erases_most) = self.ssd.erases();
        Report {
            guest_blocks: guest,
            host_blocks: host,
            device_blocks: device,
            host_waf: per(host, guest),
            device_waf: per(device, host),
            total_waf: per(device, guest),
            erases: flash.erased,
            erases_mean,
            erases_most,
            punches: tally.punches - earlier.punches,
            requests: asked.requests,
            reads: asked.reads,
            writes: asked.writes,
            flushes: asked.flushes,
            discards: asked.discards,
            sequential_percent: per(asked.in_sequence as f64 * 100.0, asked.writes as f64)
                .unwrap_or_default(),
            device_seconds: tally.busy_since(earlier).as_secs_f64(),
            seconds: Duration::from_nanos(self.ssd.time().passed() - before.at).as_secs_f64(),
            format: options.format.to_string(),
            disk_bytes: self.disk_bytes,
            drive_bytes: self.drive_bytes,
            reserve_percent: self.log.and_then(|log| log.reserve_percent),
            segment_bytes: self.log.and_then(|log| log.segment_bytes),
            seed: options.seed,
        }
    }
}

/// Bytes of the guest's disk, whole blocks.
fn disk_bytes(options: &ReplayOptions) -> Result<u64> {
    let least = match &options.load {
        Load::Generated(..) => BLOCK_BYTES,
        Load::Trace(trace) => trace.end(),
    };
    for bytes in [least, options.size.unwrap_or(0)] {
        ensure!(bytes <= DISK_BYTES_MAX, "a disk of {} is too large", format_size(bytes));
    }
    let Some(size) = options.size else {
        ensure!(least > BLOCK_BYTES, "give the --size of the guest's disk, such as 4G");
        return Ok(least.next_multiple_of(BLOCK_BYTES));
    };
    ensure!(
        size >= least,
        "the trace goes on to {least} bytes, behind a --size of {}; leave it out or give a larger one",
        format_size(size)
    );
    Ok(size.next_multiple_of(BLOCK_BYTES))
}

/// Refuses a drive whose model would not find room in the memory that this machine has left.
fn check_memory(drive_bytes: u64, ssd: &SsdOptions, available: u64) -> Result<()> {
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

/// Writes that fill a range.
fn fill(range: Range<u64>) -> impl Iterator<Item = Event> {
    let end = range.end;
    range.step_by(FILL_BYTES as usize).map(move |offset| {
        let bytes = FILL_BYTES.min(end - offset);
        Event { at: None, kind: Kind::Write, offset, bytes }
    })
}

/// How many requests of a trace it is until there have been so many writes.
fn requests_to(once: &[Event], passes: u64, writes: u64) -> Result<u64> {
    if writes == 0 {
        return Ok(0);
    }
    let is_write = |event: &Event| event.kind == Kind::Write;
    let of_pass = once.iter().filter(|it| is_write(it)).count() as u64;
    ensure!(
        writes < of_pass * passes,
        "--warmup {writes} leaves nothing to measure: there are {} writes; give fewer, or more \
         --passes",
        of_pass * passes
    );
    let left = writes % of_pass;
    let mut seen = 0;
    let within = once.iter().take_while(|event| {
        seen += u64::from(is_write(event));
        seen <= left
    });
    Ok(writes / of_pass * once.len() as u64 + within.count() as u64)
}

/// How long a trace goes on.
fn length(events: &[Event]) -> Duration {
    events.iter().filter_map(|event| event.at).max().unwrap_or_default()
}

/// The log image's options: if no reserve is asked for, the largest with which its file fits.
fn log_options(options: &ReplayOptions, disk_bytes: u64, file_bytes: u64) -> Result<LogOptions> {
    let segment_bytes =
        options.segment_bytes.unwrap_or_else(|| LogOptions::default_segment_bytes(disk_bytes));
    let with = |reserve| LogOptions {
        segment_bytes: Some(segment_bytes),
        reserve_percent: Some(reserve),
        split_streams: options.split_streams,
    };
    let bytes_with = |reserve| with(reserve).file_bytes(NAME, disk_bytes);
    let fits = |reserve: &u32| bytes_with(*reserve).is_ok_and(|bytes| bytes <= file_bytes);
    let found = match options.reserve_percent {
        Some(reserve) => Some(reserve).filter(fits),
        None => RESERVES.rev().find(fits),
    };
    if let Some(reserve) = found {
        return Ok(with(reserve));
    }
    let least = options.reserve_percent.unwrap_or(*RESERVES.start());
    let needed = bytes_with(least)?;
    let fill = (disk_bytes as f64 / needed as f64 * 1000.0).floor() / 1000.0;
    bail!(
        "a log image of {} takes up to {} with a reserve of {least} %, more than {} of the drive; \
         the largest --fill is {fill}",
        format_size(disk_bytes),
        format_size(needed),
        format_size(file_bytes)
    )
}

#[cfg(test)]
mod tests;
