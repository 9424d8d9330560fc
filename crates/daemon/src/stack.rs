//! The wiring: the only place that names two stages.
//!
//! A disk's stack is its image, or something that stands in for one, then the detection of zeroes
//! and the cache if these were asked for, then what records requests, then classification, then the
//! diagnosis layers, the first named lowest. Its limits stand before all of them: what is over a
//! limit stays in its ring.

use std::collections::BTreeMap;
use std::sync::Arc;

use flowstone_block::{Error, Layer, Result, SectorCount};
use flowstone_cache::{Cache, Cached, CachedDisk};
use flowstone_classify::{Classify, DiskClasses};
use flowstone_fileio::{FileOpener, FileWrapper};
use flowstone_image::{Image, ImageOptions, open};
use flowstone_layers::{
    Delay, DetectZeroes, Errors, LayerCounters, Log, Mem, Null, Record, Recorder, Stats, Verify,
    ZeroCounters, Zeroes,
};
use flowstone_qos::{Devices, DiskLimits, DiskShare, Group};

use crate::cache_config::CacheConfig;
use crate::config::{DiskConfig, Pdc, Source};
use crate::layer_spec::LayerSpec;
use crate::qos_config::GroupConfig;

/// What all disks of a daemon share.
pub struct Shared {
    /// Opens the files of images.
    pub opener: FileOpener,
    /// Holds blocks of all disks, if there is one.
    pub cache: Option<Arc<Cache>>,
    /// Disks that share a limit, by name.
    pub groups: BTreeMap<String, Arc<Group>>,
    /// The devices that the files of images are on.
    pub devices: Arc<Devices>,
}

impl Shared {
    /// Makes the cache, if one was asked for, and the groups.
    pub fn new(
        opener: FileOpener,
        cache: Option<CacheConfig>,
        groups: &[GroupConfig],
    ) -> Result<Self> {
        let group = |it: &GroupConfig| (it.name.clone(), Group::new(it.name.clone(), it.limit));
        let groups = groups.iter().map(group).collect();
        let make = |CacheConfig { limits, policy }| {
            let cache = Cache::new(limits.max, policy);
            cache.map(Arc::new).map_err(|error| Error::host("cache", error, "make it smaller"))
        };
        let cache = cache.map(make).transpose()?;
        Ok(Self { opener, cache, groups, devices: Arc::default() })
    }
}

/// The lowest layer, and the image if it is one.
type Foundation = (Arc<dyn Layer>, Option<Arc<dyn Image>>);

/// A disk, from its image up.
pub struct Stack {
    /// What queues talk to.
    pub top: Arc<dyn Layer>,
    /// The image, if there is one.
    pub image: Option<Arc<dyn Image>>,
    /// Counters of detected zeroes, if they are looked for.
    pub zeroes: Option<Arc<ZeroCounters>>,
    /// What the cache does for it, if there is one.
    pub cached: Option<Arc<CachedDisk>>,
    /// What it may use, alone and in its group.
    pub limits: Arc<DiskLimits>,
    /// What it gets of the devices that its files are on.
    pub share: Arc<DiskShare>,
    /// Where recordings of what guests ask for begin.
    pub recorder: Arc<Recorder>,
    /// What is known of the guest's file systems, and requests counted by class.
    pub classes: Arc<DiskClasses>,
    /// Counters of the `stats` layers, from the lowest up.
    pub counters: Vec<Arc<LayerCounters>>,
}

impl Stack {
    /// Opens everything that `config` names. No other disk of the daemon has its `number`.
    pub fn build(shared: &Shared, number: u32, config: &DiskConfig) -> Result<Self> {
        let share = DiskShare::new(Arc::clone(&shared.devices), config.weight);
        let (base, image) = Self::foundation(shared, &share, config)?;
        let (base, zeroes) = Self::detect_zeroes(base, config.detect_zeroes);
        let (base, cached) = Self::cache(base, shared, number, config.pdc);
        let record = Record::new(base);
        let recorder = record.recorder();
        let limits = Self::limits(shared, config)?;
        let paying = Arc::clone(&limits);
        let pace = Arc::new(move |bytes, charges| paying.own_read(bytes, charges));
        let classify = Classify::paced(Arc::new(record), config.journal_ioprio, pace);
        let classes = classify.classes();
        let top = Arc::new(classify);
        let counters = Vec::new();
        let mut stack =
            Self { top, image, zeroes, cached, limits, share, recorder, classes, counters };
        for spec in &config.layers {
            stack.add(spec)?;
        }
        Ok(stack)
    }

    fn foundation(
        shared: &Shared,
        share: &Arc<DiskShare>,
        config: &DiskConfig,
    ) -> Result<Foundation> {
        let (top, image): Foundation = match config.source()? {
            Source::Null(bytes) => (Arc::new(Null::new(capacity(bytes)?)), None),
            Source::Mem(bytes) => {
                let mem = Mem::new(capacity(bytes)?)
                    .map_err(|error| Error::host("backend mem", error, "choose a smaller size"))?;
                (Arc::new(mem), None)
            }
            Source::Image(path, format) => {
                let share = Arc::clone(share);
                let wrapper = FileWrapper::new(move |file| share.charge(file));
                let options = ImageOptions { wrapper, ..config.image_options(shared.opener) };
                let image: Arc<dyn Image> = Arc::from(open(path, format, options)?);
                (Arc::clone(&image) as Arc<dyn Layer>, Some(image))
            }
        };
        Ok((top, image))
    }

    fn detect_zeroes(
        base: Arc<dyn Layer>,
        choice: DetectZeroes,
    ) -> (Arc<dyn Layer>, Option<Arc<ZeroCounters>>) {
        let unmap = match choice {
            DetectZeroes::Off => return (base, None),
            DetectZeroes::On => false,
            DetectZeroes::Unmap => true,
        };
        let zeroes = Zeroes::new(base, unmap);
        let counters = zeroes.counters();
        (Arc::new(zeroes), Some(counters))
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

    /// They are there without a limit, too: one may be set later.
    fn limits(shared: &Shared, config: &DiskConfig) -> Result<Arc<DiskLimits>> {
        let group = match &config.group {
            None => Group::unnamed(),
            Some(name) => shared.groups.get(name).map(Arc::clone).ok_or_else(|| {
                let why = format!("there is no group called `{name}`");
                Error::invalid(format!("disk {}", config.name), why, "add a [[group]]")
            })?,
        };
        Ok(DiskLimits::new(group, config.limit, config.weight))
    }

    fn add(&mut self, spec: &LayerSpec) -> Result<()> {
        let base = Arc::clone(&self.top);
        self.top = match spec {
            LayerSpec::Delay(range) => Arc::new(Delay::new(base, *range)),
            LayerSpec::Error(rule) => Arc::new(Errors::new(base, *rule)),
            LayerSpec::Verify => Arc::new(Verify::new(base)),
            LayerSpec::Log(path) => Arc::new(Log::new(base, path).map_err(|error| {
                let what = format!("layer log={}", path.display());
                Error::host(what, error, "choose a path that you may write")
            })?),
            LayerSpec::Stats => {
                let stats = Stats::new(base);
                self.counters.push(stats.counters());
                Arc::new(stats)
            }
        };
        Ok(())
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
