//! The wiring of stages: the only place that names two of them.
//!
//! A disk's stack is its image or a backend; then, if configured, zero detection and the cache;
//! then the recorder, classification, and the diagnosis layers, the first named lowest. Its limits
//! are applied before all of them: requests over a limit stay in their ring.

mod source;

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use flowstone_block::{Error, Layer, Result, SectorCount};
use flowstone_cache::{
    Cache, CacheArgs, CacheConfig, Cached, CachedDisk, DiskCacheReport, QueueCounters,
};
use flowstone_classify::{ClassesReport, Classify, ClassifyArgs, DiskClasses, LayoutReport};
use flowstone_fileio::{FileArgs, FileOpener, FileWrapper};
use flowstone_formats::{CopyArgs, ImageArgs, ImageOptions, open};
use flowstone_image::{Damages, DiscardMode, Discards, Format, Image, Progress};
use flowstone_layers::{
    DetectZeroes, LayerArgs, LayerCounters, Mem, Null, Record, Recorder, ZeroCounters, ZeroesArgs,
};
use flowstone_log::{CopyMemory, LogState};
use flowstone_memory::sizer::Limits;
use flowstone_qos::{
    DeviceVm, Devices, DiskLimits, DiskShare, Group, GroupArgs, QosReport, ShareArgs,
};
use serde_json::{Map, Value, json};

pub use self::source::{Backend, Pdc, PdcArgs, Source};
use crate::families::Families;
use crate::groups::GroupTable;

/// Options of the stages of a disk, from the lowest up.
#[derive(Clone, Debug, Args)]
pub struct StackArgs {
    /// The image file or block device
    pub image: Option<PathBuf>,
    /// Instead of an image: null:SIZE (does nothing) or mem:SIZE (lost with the daemon)
    #[arg(long)]
    pub backend: Option<Backend>,
    /// Image format, raw, qcow2 or log, if the file's name does not show it
    #[arg(short, long)]
    pub format: Option<Format>,
    /// Refuse writes; several daemons may serve the same image this way
    #[arg(long)]
    pub readonly: bool,
    /// Options of its file.
    #[command(flatten)]
    pub file: FileArgs,
    /// Options of the image.
    #[command(flatten)]
    pub opened: ImageArgs,
    /// Detection of zeroes.
    #[command(flatten)]
    pub zeroes: ZeroesArgs,
    /// Journals in caches.
    #[command(flatten)]
    pub journals: PdcArgs,
    /// Classification.
    #[command(flatten)]
    pub classify: ClassifyArgs,
    /// Diagnosis layers.
    #[command(flatten)]
    pub layers: LayerArgs,
    /// Limit and weight.
    #[command(flatten)]
    pub share: ShareArgs,
}

impl StackArgs {
    /// Checks for settings that exclude each other. Returns the reason and advice.
    pub fn check(&self) -> std::result::Result<(), (&'static str, &'static str)> {
        let unmaps = self.zeroes.detect_zeroes == DetectZeroes::Unmap;
        if unmaps && self.opened.discard != DiscardMode::Deallocate {
            let why = "zeroes that are unmapped give space back, which its discard mode forbids";
            return Err((why, "use --discard deallocate or --detect-zeroes on"));
        }
        Ok(())
    }
}

/// Options of resources that disks share.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct SharedArgs {
    /// A cache.
    #[command(flatten)]
    pub cache: CacheArgs,
    /// Memory of cleaners.
    #[command(flatten)]
    pub copies: CopyArgs,
}

impl SharedArgs {
    /// Checks for settings that exclude each other. Returns the reason and advice.
    pub fn check(&self) -> std::result::Result<(), (&'static str, &'static str)> {
        self.cache.config().map(|_| ())
    }
}

/// State shared by all disks of a daemon.
pub struct Shared {
    /// Opens the files of images.
    pub opener: FileOpener,
    /// The cache of all disks, if there is one.
    pub cache: Option<Arc<Cache>>,
    /// Sizes between which the cache is kept, as the host's memory allows.
    pub cache_limits: Limits,
    /// Memory in which log images assemble copies.
    pub copy_memory: CopyMemory,
    /// Groups of disks that share a limit.
    pub groups: GroupTable,
    /// The devices that hold the image files.
    pub devices: Arc<Devices>,
}

impl Shared {
    /// Makes the cache, if configured, and the groups.
    pub fn new(opener: FileOpener, args: &SharedArgs, groups: &[GroupArgs]) -> Result<Self> {
        let refuse = |(why, advice)| Error::invalid("cache", why, advice);
        let cache = args.cache.config().map_err(refuse)?;
        let limits = |config: CacheConfig| Limits { min: config.bytes_min, max: config.bytes_max };
        let cache_limits = cache.map_or(Limits::default(), limits);
        let groups = GroupTable::of(groups)?;
        let make = |config: CacheConfig| {
            let cache = config.make();
            cache.map(Arc::new).map_err(|error| Error::host("cache", error, "make it smaller"))
        };
        let cache = cache.map(make).transpose()?;
        let copy_memory = args.copies.memory();
        Ok(Self { opener, cache, cache_limits, copy_memory, groups, devices: Arc::default() })
    }
}

/// Device weight of a VM with one vCPU and 1 GiB of memory.
pub const VM_WEIGHT: u32 = DeviceVm::UNKNOWN;

/// The lowest layer, and the image if there is one.
type Foundation = (Arc<dyn Layer>, Option<Arc<dyn Image>>);

/// The stages of a disk, from its image up.
pub struct Stack {
    /// Top layer, used by queues.
    pub top: Arc<dyn Layer>,
    /// The image, if there is one.
    pub image: Option<Arc<dyn Image>>,
    /// Counters of detected zeroes, if detection is on.
    pub zeroes: Option<Arc<ZeroCounters>>,
    /// The disk's counters in the cache, if there is one.
    pub cached: Option<Arc<CachedDisk>>,
    /// Limits of the disk, alone and in its group.
    pub limits: Arc<DiskLimits>,
    /// The disk's share of the devices that hold its files.
    pub share: Arc<DiskShare>,
    /// Starts recordings of guests' requests.
    pub recorder: Arc<Recorder>,
    /// The disk's layout, and requests counted by class.
    pub classes: Arc<DiskClasses>,
    /// Counters of the `stats` layers, lowest first.
    pub counters: Vec<Arc<LayerCounters>>,
}

impl Stack {
    /// Opens all stages in `args` for the disk called `name`, which shares the limit of `group`.
    /// `number` is unique in the daemon. `progress` receives the progress of recovery.
    pub fn build(
        shared: &Shared,
        number: u32,
        name: &str,
        group: Option<&str>,
        args: &StackArgs,
        progress: Progress,
    ) -> Result<Self> {
        let weight = args.share.weight.unwrap_or_default();
        let share = DiskShare::new(Arc::clone(&shared.devices), number, weight);
        let (base, image) = Self::foundation(shared, &share, name, args, progress)?;
        let (base, zeroes) = args.zeroes.layer(base);
        let (base, cached) = Self::cache(base, shared, number, args.journals.pdc);
        let record = Record::new(base);
        let recorder = record.recorder();
        let limits = Self::limits(shared, name, group, args.share)?;
        let paying = Arc::clone(&limits);
        let pace = Arc::new(move |bytes, charges| paying.own_read(bytes, charges));
        let level = args.classify.journal_ioprio;
        let classify = Classify::paced(Arc::new(record), level, pace);
        let classes = classify.classes();
        let mut counters = Vec::new();
        let top = args.layers.stack(Arc::new(classify), &mut counters)?;
        Ok(Self { top, image, zeroes, cached, limits, share, recorder, classes, counters })
    }

    /// Returns the counters of the stages, each under its name in `stats --json`.
    pub fn figures(&self) -> Map<String, Value> {
        let mut all = Map::new();
        let mut add = |name: &str, figures: Option<Value>| {
            figures.and_then(|figures| all.insert(name.to_owned(), figures));
        };
        add("detected_zeroes", self.zeroes.as_deref().map(|it| json!(it)));
        add("cache", self.cached.as_deref().map(|disk| json!(DiskCacheReport::of(&[disk]))));
        add("classes", Some(json!(ClassesReport::of(&self.classes))));
        let counters: Vec<&LayerCounters> = self.counters.iter().map(|it| &**it).collect();
        add("layers", Some(json!(counters)));
        // These keys are at the top level.
        if let Value::Object(own) = json!(QosReport::of(&self.limits, &self.share)) {
            all.extend(own);
        }
        all
    }

    /// Adds the metrics of the stages; without a stack, their names.
    pub fn read(stack: Option<&Self>, families: &mut Families) {
        families.read(DiskLimits::METRICS, stack.map(|it| &*it.limits));
        families.read(DiskShare::METRICS, stack.map(|it| &*it.share));
        families.read(ZeroCounters::METRICS, stack.and_then(|it| it.zeroes.as_deref()));
        let cached = stack.and_then(|it| it.cached.as_deref());
        families.read(QueueCounters::METRICS, cached.map(CachedDisk::counters));
        let image = stack.and_then(|it| it.image.as_deref());
        families.read(Discards::METRICS, image.map(|it| it.discards()).as_ref());
        families.read(Damages::METRICS, image.map(|it| it.damages()).as_ref());
        // An image passes on the values itself.
        families.read(LogState::METRICS, None);
    }

    /// Sets the VM that uses the disk, for the devices that hold its files.
    pub fn set_vm(&self, id: u32, weight: u32) {
        self.share.set_vm(DeviceVm { id, weight });
    }

    /// Returns the layout recognised on the disk.
    pub fn layout(&self) -> Value {
        json!(LayoutReport::of(&self.classes))
    }

    fn foundation(
        shared: &Shared,
        share: &Arc<DiskShare>,
        name: &str,
        args: &StackArgs,
        progress: Progress,
    ) -> Result<Foundation> {
        let (top, image): Foundation = match args.source(name)? {
            Source::Null(bytes) => (Arc::new(Null::new(capacity(bytes)?)), None),
            Source::Mem(bytes) => {
                let mem = Mem::new(capacity(bytes)?)
                    .map_err(|error| Error::host("backend mem", error, "choose a smaller size"))?;
                (Arc::new(mem), None)
            }
            Source::Image(path, format) => {
                let share = Arc::clone(share);
                let wrapper = FileWrapper::new(move |file| share.charge(file));
                let copy_memory = shared.copy_memory.clone();
                let options = args.image_options(shared.opener);
                let options = ImageOptions { wrapper, copy_memory, progress, ..options };
                let image: Arc<dyn Image> = Arc::from(open(path, format, options)?);
                (Arc::clone(&image) as Arc<dyn Layer>, Some(image))
            }
        };
        Ok((top, image))
    }

    fn cache(
        base: Arc<dyn Layer>,
        shared: &Shared,
        number: u32,
        pdc: Pdc,
    ) -> (Arc<dyn Layer>, Option<Arc<CachedDisk>>) {
        let Some(cache) = &shared.cache else { return (base, None) };
        let cached = Cached::new(base, Arc::clone(cache), number, pdc == Pdc::Off);
        let disk = cached.disk();
        (Arc::new(cached), Some(disk))
    }

    /// Makes the limits, also if there is none: one may be set later.
    fn limits(
        shared: &Shared,
        name: &str,
        group: Option<&str>,
        share: ShareArgs,
    ) -> Result<Arc<DiskLimits>> {
        let group = match group {
            None => Group::unnamed(),
            Some(group) => shared.groups.get(group).ok_or_else(|| {
                let why = format!("there is no group called `{group}`");
                Error::invalid(format!("disk {name}"), why, "add the group")
            })?,
        };
        let ShareArgs { limit, weight } = share;
        Ok(DiskLimits::new(group, limit.unwrap_or_default(), weight.unwrap_or_default()))
    }
}

fn capacity(bytes: u64) -> Result<SectorCount> {
    SectorCount::from_bytes(bytes).filter(|count| count.get() > 0).ok_or_else(|| {
        let why = "its size is not a multiple of 512 bytes, or 0";
        Error::invalid("backend", why, "give a size such as null:8G")
    })
}

#[cfg(test)]
mod tests;
