//! The resource monitor: lets the cache grow while the host has spare memory, and shrinks it when
//! memory is short (MultiCache's monitor, S5.8).
//!
//! Twice a second it reads the available memory of the host and of the daemon's memory cgroups, and
//! the memory pressure (time that processes waited for memory); a [`Pool`] decides. Every decision
//! is logged and kept for `stats`. It also tells the cache and the devices which VMs exist,
//! whenever that changes; without caches to size, that is all it does.

mod sharing;

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use flowstone_block::{format_size, lock, mutated};
use flowstone_cache::Cache;
use flowstone_memory::reading::Reader;
use flowstone_memory::sizer::{Change, Limits};
use flowstone_resources::{GuestAgents, PERIOD, Pool, in_words};
use serde::Serialize;
use tracing::info;

use self::sharing::Sharing;
use crate::disks::Disks;

/// Decisions kept for `stats`.
const DECISIONS_MAX: usize = 16;

/// A decision, as shown by `stats`.
#[derive(Clone, Serialize)]
pub struct Decision {
    /// Time since the daemon started.
    at_s: f64,
    from_bytes: u64,
    to_bytes: u64,
    reason: String,
}

impl Decision {
    fn of(at: Duration, change: &Change) -> Self {
        let (from_bytes, to_bytes) = (change.from, change.to);
        Self { at_s: at.as_secs_f64(), from_bytes, to_bytes, reason: in_words(change) }
    }
}

/// The caches that a monitor sizes.
pub struct Caches {
    /// The sector cache, if there is one.
    pub cache: Option<Arc<Cache>>,
    /// Sizes between which the sector cache is kept; zero without one.
    pub limits: Limits,
    /// Connections to guests' file caches, if enabled.
    pub guests: Option<Arc<GuestAgents>>,
}

/// Owner of the monitor's thread. Dropping it ends the thread.
pub struct ResourceMonitor {
    limits: Limits,
    decisions: Arc<Mutex<VecDeque<Decision>>>,
    /// Dropped to end the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ResourceMonitor {
    /// Starts to size `caches` and to share them out between the VMs of `disks`. `start` is the
    /// time at which the daemon started.
    pub fn start(caches: Caches, disks: Arc<Disks>, start: Instant) -> io::Result<Self> {
        let limits = caches.limits;
        let decisions: Arc<Mutex<VecDeque<Decision>>> = Arc::default();
        let (stop, stopped) = channel();
        let kept = Arc::clone(&decisions);
        let watch = move || {
            let mut watch = Watch::new(caches, disks);
            let mut last = start.elapsed();
            while stopped.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                let at = start.elapsed();
                let passed = at - std::mem::replace(&mut last, at);
                let Some(change) = watch.look(at, passed) else { continue };
                let mut decisions = lock(&kept);
                if decisions.len() == DECISIONS_MAX {
                    decisions.pop_front();
                }
                decisions.push_back(Decision::of(at, &change));
            }
        };
        let thread = Builder::new().name("memory".into()).stack_size(128 << 10).spawn(watch)?;
        Ok(Self { limits, decisions, stop: Some(stop), thread: Some(thread) })
    }

    /// Returns the sizes between which the sector cache is kept.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Returns the last decisions, oldest first.
    pub fn decisions(&self) -> Vec<Decision> {
        lock(&self.decisions).iter().cloned().collect()
    }
}

/// State of the monitor's thread.
struct Watch {
    caches: Caches,
    disks: Arc<Disks>,
    reader: Reader,
    sharing: Sharing,
    pool: Pool,
    /// The target that the sector cache was given last.
    told: u64,
}

impl Watch {
    fn new(caches: Caches, disks: Arc<Disks>) -> Self {
        let (pool, told) = (Pool::new(caches.limits), caches.limits.max);
        Self {
            caches,
            disks,
            reader: Reader::of_this_process(),
            sharing: Sharing::default(),
            pool,
            told,
        }
    }

    fn look(&mut self, at: Duration, passed: Duration) -> Option<Change> {
        let vms = self.sharing.look(&self.disks.serving());
        let cache = self.caches.cache.as_deref();
        if let Some(cache) = cache {
            cache.pass(passed);
            let target = cache.target_bytes();
            if cache.resident_bytes() > target {
                // Fills that were in flight when it shrank.
                cache.set_target(target);
            }
            let vms = mutated("daemon.monitor.cache-hears-of-no-vms", vms, None);
            if let Some(vms) = vms {
                cache.set_vms(vms);
            }
        }
        if cache.is_none() && self.caches.guests.is_none() {
            return None;
        }
        let heard = self.caches.guests.as_ref().map(|guests| guests.heard()).unwrap_or_default();
        let guests = self.sharing.guest_caches(heard);
        let reading = self.reader.read()?;
        let change = self.pool.decide(at, reading, cache, &guests);
        if let Some(cache) = cache
            && self.told != self.pool.of_cache()
        {
            self.told = self.pool.of_cache();
            cache.set_target(self.told);
        }
        for (peer, bytes) in self.pool.grants() {
            let Some(agents) = &self.caches.guests else { break };
            agents.grant(peer, bytes, self.pool.reason());
        }
        if let Some(change) = &change {
            let to = format_size(change.to);
            let caches = if guests.is_empty() { "the cache" } else { "the caches, guests' too," };
            info!("{caches} may take {to} from now on: {}", self.pool.reason());
        }
        change
    }
}

impl Drop for ResourceMonitor {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
