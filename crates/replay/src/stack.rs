//! The wiring: a cache, if there is one, before an image.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use flowstone_block::{Channel, Class, Layer, Origin, QueueContext, QueueDepth};
use flowstone_cache::{Cache, CacheCount, Cached, CachedDisk, VmSize, Vms};
use flowstone_image::Image;

use crate::options::CacheOptions;

/// The only disk's number.
const DISK: u32 = 0;
/// How often the cache hears of the time that passes, as in a daemon.
const PERIOD: Duration = Duration::from_millis(500);

/// See the module.
pub struct Stack {
    image: Arc<dyn Image>,
    cache: Option<(Arc<Cached>, Arc<CachedDisk>, Arc<Cache>)>,
    /// When it was told last.
    told: Instant,
}

impl Stack {
    /// `key` decides what is left to chance.
    pub fn new(
        image: Box<dyn Image>,
        cache: Option<CacheOptions>,
        key: u64,
        now: Instant,
    ) -> Result<Self> {
        let image: Arc<dyn Image> = Arc::from(image);
        let below: Arc<dyn Layer> = Arc::clone(&image) as Arc<dyn Layer>;
        let make = |CacheOptions { bytes, policy, holds_journals }| -> Result<_> {
            let cache = Cache::with_key(bytes, policy, key).context("--cache; make it smaller")?;
            cache.set_vms(Vms::new(&[VmSize { cpus: 1, memory: 1 }], [(DISK, 0)]));
            let cache = Arc::new(cache);
            let cached = Cached::new(below, Arc::clone(&cache), DISK, holds_journals);
            let disk = cached.disk();
            Ok((Arc::new(cached), disk, cache))
        };
        Ok(Self { image, cache: cache.map(make).transpose()?, told: now })
    }

    /// A queue of the disk, and what its thread sleeps in.
    pub fn queue(&self, depth: usize) -> Result<(Box<dyn Channel>, QueueContext)> {
        let alone = QueueContext::alone(QueueDepth(depth as u16))?;
        let context = QueueContext { origin: Origin::Queue { disk: DISK, queue: 0 }, ..alone };
        let channel = match &self.cache {
            Some((cached, ..)) => cached.channel(&context)?,
            None => self.image.channel(&context)?,
        };
        Ok((channel, context))
    }

    /// The image below.
    pub fn image(&self) -> &Arc<dyn Image> {
        &self.image
    }

    /// Tells the cache how much time has passed.
    pub fn tell_time(&mut self, now: Instant) {
        let Some((.., cache)) = &self.cache else { return };
        let passed = now.saturating_duration_since(self.told);
        if passed >= PERIOD {
            cache.pass(passed);
            self.told = now;
        }
    }

    /// Blocks that were read from the cache, and past it, by class.
    pub fn hits(&self) -> Option<[CacheCount; Class::ALL.len()]> {
        let (_, disk, _) = self.cache.as_ref()?;
        Some(Class::ALL.map(|class| disk.counters().of_class(class)))
    }
}
