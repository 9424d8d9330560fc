//! A complete replay: the drive, the images on it, the load.

use std::ops::RangeInclusive;

use anyhow::{Result, anyhow, bail, ensure};
use flowstone_block::format_size;
use flowstone_formats::CreateOptions;
use flowstone_image::Format;
use flowstone_log::LogOptions;
use flowstone_ssd::Ssd;

use crate::guest::{Asked, Pace};
use crate::ideal::{self, Ideal};
use crate::kinds::Kinds;
use crate::load::{BLOCK_BYTES, Writes};
use crate::medium::{Counted, Medium};
use crate::model::{Model, NAME, drive_bytes};
use crate::onto::Host;
use crate::options::{Load, ReplayOptions, Timing};
use crate::plan::{Events, Plan};
use crate::report::{Figures, Hits, PhaseFigures, Report};

/// Most requests in flight when the trace determines the times.
const DEPTH_MAX: usize = 1024;
/// Largest disk: more blocks cannot be numbered in the model.
const DISK_BYTES_MAX: u64 = 8 << 40;
/// Requests in flight while the disk is filled.
const FILL_DEPTH: usize = 32;
/// Most images on a drive.
const IMAGES_MAX: usize = 256;
/// Reserves that a log image may have, in percent.
const RESERVES: RangeInclusive<u32> = 3..=74;

/// Progress callback: requests done, and requests in total.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// Runs a replay and returns its figures.
///
/// # Errors
/// If the options contradict each other, or on an unexpected failure.
pub fn replay(options: &ReplayOptions, progress: Progress<'_>) -> Result<Report> {
    ensure!(options.fill > 0.0 && options.fill <= 1.0, "--fill is a share of the drive, 0 to 1");
    let depths = 1..=DEPTH_MAX;
    ensure!(depths.contains(&options.iodepth), "--iodepth is 1 to {DEPTH_MAX}");
    ensure!(options.passes > 0, "--passes is at least 1");
    ensure!((1..=IMAGES_MAX).contains(&options.images), "--images is 1 to {IMAGES_MAX}");
    ensure!(options.images == 1 || options.onto.is_none(), "--onto makes one image");
    let disk_bytes = disk_bytes(options)?;
    let plans = Plan::of_all(options, disk_bytes)?;
    let mut scene = Scene::set(options, disk_bytes)?;
    let (warmup, requests) = (plans[0].warmup, plans[0].requests);
    let begins = scene.run(options, plans, progress)?;
    let report = scene.report(options, &begins);
    let ideal = scene.ideal(options, warmup, requests, report.figures.total_waf);
    Ok(Report { ideal, ..report })
}

/// The images with their guests.
struct Scene {
    medium: Box<dyn Medium>,
    /// Bytes of all disks together.
    disk_bytes: u64,
    drive_bytes: Option<u64>,
    log: Option<LogOptions>,
}

/// The counts at some time.
struct Moment {
    asked: Asked,
    counted: Counted,
}

/// The counts at the beginning of the measured part, and of each phase.
struct Begins {
    all: Moment,
    phases: Vec<(String, Moment)>,
}

impl Scene {
    fn set(options: &ReplayOptions, disk_bytes: u64) -> Result<Self> {
        let slots = match options.timing {
            Timing::Trace => DEPTH_MAX,
            Timing::Asap => options.iodepth.max(FILL_DEPTH),
        };
        let (medium, drive_bytes, log): (Box<dyn Medium>, _, _) = match &options.onto {
            Some(onto) => {
                let host = Host::new(options, onto, disk_bytes, slots)?;
                (Box::new(host), None, options.create.log)
            }
            None => {
                let unit = options.ssd.unit_bytes;
                let file_bytes =
                    ((disk_bytes as f64 / options.fill).round() as u64).next_multiple_of(unit);
                let log = match options.format {
                    Format::Log => log_options(options, disk_bytes, file_bytes)?,
                    Format::Raw | Format::Qcow2 => options.create.log,
                };
                let create = CreateOptions { log, ..options.create.clone() };
                let model = Model::new(options, &create, disk_bytes, file_bytes, slots)?;
                (Box::new(model), Some(drive_bytes(options, file_bytes)), log)
            }
        };
        let log = (options.format == Format::Log).then_some(log);
        let disk_bytes = disk_bytes * options.images as u64;
        Ok(Self { medium, disk_bytes, drive_bytes, log })
    }

    fn run(
        &mut self,
        options: &ReplayOptions,
        plans: Vec<Plan>,
        progress: Progress<'_>,
    ) -> Result<Begins> {
        // They differ in the loads alone.
        let Plan { requests, warmup, .. } = plans[0];
        let phases = plans[0].phases.clone();
        let (held, loads): (Vec<_>, Vec<_>) =
            plans.into_iter().map(|plan| (plan.held, plan.load)).unzip();
        self.set_loads(held, Pace::Depth(FILL_DEPTH));
        self.medium.run(u64::MAX, &mut |_| ())?;
        let pace = match options.timing {
            Timing::Asap => Pace::Depth(options.iodepth),
            Timing::Trace => Pace::Trace { start: self.medium.now(), depth: DEPTH_MAX },
        };
        self.set_loads(loads, pace);
        self.measure(warmup, requests, phases, progress)
    }

    fn set_loads(&mut self, loads: Vec<Events>, pace: Pace) {
        for (guest, load) in self.medium.guests().iter().zip(loads) {
            guest.borrow_mut().set_load(load, pace);
        }
    }

    /// Runs the loads, of `all` requests each, to their ends; requests before `warmup` are not
    /// measured.
    fn measure(
        &mut self,
        warmup: u64,
        all: u64,
        phases: Vec<(String, u64)>,
        progress: Progress<'_>,
    ) -> Result<Begins> {
        let all = all * self.medium.guests().len() as u64;
        let mut progress = |done: u64| progress(done, all);
        self.medium.run(warmup, &mut progress)?;
        let mut begins = Begins { all: self.moment(), phases: Vec::new() };
        for (name, at) in phases {
            // A phase that begins before the measured part is not measured either.
            if at >= warmup {
                self.medium.run(at, &mut progress)?;
                begins.phases.push((name, self.moment()));
            }
        }
        self.medium.run(u64::MAX, &mut progress)?;
        progress(all);
        Ok(begins)
    }

    fn moment(&self) -> Moment {
        Moment { asked: self.medium.asked(), counted: self.medium.count() }
    }

    /// Runs the writes of a guest on an ideal log with the live share of the images.
    fn ideal(
        &self,
        options: &ReplayOptions,
        warmup: u64,
        requests: u64,
        total_waf: Option<f64>,
    ) -> Option<Ideal> {
        let Load::Generated(generator, _) = options.load else { return None };
        let images = options.images as u64;
        let segments = self.medium.segments_of_data()? / images as u32;
        let blocks = self.log?.segment_data_blocks(self.disk_bytes / images);
        let disk_blocks = u32::try_from(self.disk_bytes / images / BLOCK_BYTES).ok()?;
        let writes = Writes::new(generator, disk_blocks, options.seed).take(requests as usize);
        let writes = writes.map(|event| (event.offset / BLOCK_BYTES) as u32);
        let waf = ideal::amplification(writes, warmup, disk_blocks, segments, blocks)?;
        let live_share = f64::from(disk_blocks) / (f64::from(segments) * f64::from(blocks));
        Some(Ideal { live_share, waf, total_to_ideal: total_waf.map(|total| total / waf) })
    }

    fn report(&self, options: &ReplayOptions, begins: &Begins) -> Report {
        let end = self.moment();
        let unit_bytes = options.ssd.unit_bytes;
        let ends = begins.phases.iter().skip(1).map(|(_, moment)| moment).chain([&end]);
        let phases = begins.phases.iter().zip(ends);
        let phases = phases.map(|((name, begin), end)| PhaseFigures {
            name: name.clone(),
            figures: begin.figures(end, unit_bytes),
        });
        let (counted, earlier) = (&end.counted, &begins.all.counted);
        let drive = earlier.drive.as_ref().zip(counted.drive.as_ref());
        let erases = self.medium.erases();
        Report {
            figures: begins.all.figures(&end, unit_bytes),
            phases: phases.collect(),
            erases_mean: erases.map(|(mean, _)| mean),
            erases_most: erases.map(|(_, most)| most),
            hits: counted.hits.zip(earlier.hits).map(|(now, earlier)| Hits::since(now, earlier)),
            kinds: drive
                .filter(|_| self.log.is_some())
                .map(|(earlier, now)| Kinds::between(earlier, now, unit_bytes)),
            ideal: None,
            format: options.format.to_string(),
            disk_bytes: self.disk_bytes,
            drive_bytes: self.drive_bytes,
            reserve_percent: self.log.and_then(|log| log.reserve_percent),
            segment_bytes: self.log.and_then(|log| log.segment_bytes),
            seed: options.seed,
        }
    }
}

impl Moment {
    /// Returns the figures of the time from this moment to `end`.
    fn figures(&self, end: &Self, unit_bytes: u64) -> Figures {
        let asked = end.asked.since(&self.asked);
        let (counted, earlier) = (&end.counted, &self.counted);
        let blocks = |bytes: u64| bytes as f64 / BLOCK_BYTES as f64;
        let per = |one: f64, other: f64| (other > 0.0).then(|| one / other);
        let drive = counted.drive.as_ref().zip(earlier.drive.as_ref());
        let flash = drive.map(|(now, earlier)| now.flash_since(earlier));
        let guest = blocks(asked.written);
        let written = counted.host_bytes.zip(earlier.host_bytes);
        // Writes that never reach a file stay in memory: there is nothing to count.
        let written = written.map(|(now, earlier)| now - earlier).filter(|bytes| *bytes > 0);
        let host = written.map(blocks);
        let device = flash.map(|it| blocks((it.written + it.copied) * unit_bytes));
        Figures {
            guest_blocks: guest,
            host_blocks: host,
            device_blocks: device,
            host_waf: host.and_then(|host| per(host, guest)),
            device_waf: device.zip(host).and_then(|(device, host)| per(device, host)),
            total_waf: device.and_then(|device| per(device, guest)),
            erases: flash.map(|it| it.erased),
            punches: counted.punches - earlier.punches,
            requests: asked.requests,
            reads: asked.reads,
            writes: asked.writes,
            flushes: asked.flushes,
            discards: asked.discards,
            sequential_percent: per(asked.in_sequence as f64 * 100.0, asked.writes as f64)
                .unwrap_or_default(),
            device_seconds: drive.map(|(now, earlier)| now.busy_since(earlier).as_secs_f64()),
            seconds: counted.at.duration_since(earlier.at).as_secs_f64(),
        }
    }
}

/// Returns the size of the guest's disk in bytes, rounded to whole blocks.
fn disk_bytes(options: &ReplayOptions) -> Result<u64> {
    let least = match &options.load {
        Load::Generated(..) => BLOCK_BYTES,
        Load::Trace(trace) => trace.end(),
    };
    let recorded = match &options.load {
        Load::Generated(..) => None,
        Load::Trace(trace) => trace.size.filter(|_| options.size.is_none()),
    };
    for bytes in [least, options.size.unwrap_or(0), recorded.unwrap_or(0)] {
        ensure!(bytes <= DISK_BYTES_MAX, "a disk of {} is too large", format_size(bytes));
    }
    let Some(size) = options.size else {
        let size = least.max(recorded.unwrap_or(0));
        let is_known = matches!(options.load, Load::Trace(_)) && size > 0;
        ensure!(is_known, "give the --size of the guest's disk, such as 4G");
        return Ok(size.next_multiple_of(BLOCK_BYTES));
    };
    let shown = format_size(size);
    match options.load {
        Load::Generated(..) => ensure!(size >= least, "a --size of {shown} is less than a block"),
        Load::Trace(_) => ensure!(
            size >= least,
            "the trace goes on to {least} bytes, behind a --size of {shown}; leave it out or give a \
             larger one"
        ),
    }
    Ok(size.next_multiple_of(BLOCK_BYTES))
}

/// Returns the options of a log image: without a given reserve, the largest with which its file
/// fits.
fn log_options(options: &ReplayOptions, disk_bytes: u64, file_bytes: u64) -> Result<LogOptions> {
    let mut asked = options.create.log;
    if asked.segment_bytes.is_none() {
        // As `create` would detect it.
        asked.erase_unit_bytes.get_or_insert(options.ssd.block_bytes);
        asked.segment_bytes = Some(asked.segment_bytes_of(disk_bytes));
        asked.erase_unit_bytes = None;
    }
    let with = |reserve| LogOptions { reserve_percent: Some(reserve), ..asked };
    let bytes_with = |reserve| with(reserve).file_bytes(NAME, disk_bytes);
    let fits = |reserve: &u32| bytes_with(*reserve).is_ok_and(|bytes| bytes <= file_bytes);
    let found = match asked.reserve_percent {
        Some(reserve) => Some(reserve).filter(fits),
        None => RESERVES.rev().find(fits),
    };
    if let Some(reserve) = found {
        return Ok(with(reserve));
    }
    let least = asked.reserve_percent.unwrap_or(*RESERVES.start());
    let needed = bytes_with(least)?;
    let fill = (disk_bytes as f64 / needed as f64 * 1000.0).floor() / 1000.0;
    let advice = if fill > 0.0 {
        // A drive of that size may be too small for its erase blocks.
        Ssd::check(drive_bytes(options, needed), &options.ssd).map_err(|why| anyhow!(why))?;
        format!("the largest --fill is {fill}")
    } else {
        "give a larger --size".into()
    };
    bail!(
        "a log image of {} takes up to {} with a reserve of {least} %, more than {} of the drive; \
         {advice}",
        format_size(disk_bytes),
        format_size(needed),
        format_size(file_bytes)
    )
}

#[cfg(test)]
mod tests;
