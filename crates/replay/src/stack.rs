//! The wiring: an optional cache above an image.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use flowstone_block::{Channel, Class, Layer, Origin, QueueContext, QueueDepth};
use flowstone_cache::{Cache, CacheCount, Cached, CachedDisk, VmSize, Vms};
use flowstone_image::Image;

use crate::options::CacheOptions;

/// Number of the only disk.
const DISK: u32 = 0;
/// Interval at which the cache is told the time, as in a daemon.
const PERIOD: Duration = Duration::from_millis(500);

/// An image with an optional cache.
pub struct Stack {
    image: Arc<dyn Image>,
    cache: Option<(Arc<Cached>, Arc<CachedDisk>, Arc<Cache>)>,
    /// Time of the last report to the cache.
    told: Instant,
}

impl Stack {
    /// `key` seeds random choices.
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

    /// Opens a queue of the disk. Returns it with its context.
    pub fn queue(&self, depth: usize) -> Result<(Box<dyn Channel>, QueueContext)> {
        let alone = QueueContext::alone(QueueDepth(depth as u16))?;
        let context = QueueContext { origin: Origin::Queue { disk: DISK, queue: 0 }, ..alone };
        let channel = match &self.cache {
            Some((cached, ..)) => cached.channel(&context)?,
            None => self.image.channel(&context)?,
        };
        Ok((channel, context))
    }

    /// Returns the image.
    pub fn image(&self) -> &Arc<dyn Image> {
        &self.image
    }

    /// Tells the cache the time that has passed.
    pub fn tell_time(&mut self, now: Instant) {
        let Some((.., cache)) = &self.cache else { return };
        let passed = now.saturating_duration_since(self.told);
        if passed >= PERIOD {
            cache.pass(passed);
            self.told = now;
        }
    }

    /// Returns the blocks read from the cache and from below it, by class.
    pub fn hits(&self) -> Option<[CacheCount; Class::ALL.len()]> {
        let (_, disk, _) = self.cache.as_ref()?;
        Some(Class::ALL.map(|class| disk.of_class(class)))
    }
}
