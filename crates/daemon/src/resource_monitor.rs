//! The resource monitor: the cache takes memory while the host has some to spare, and gives it back
//! when the host runs short (MultiCache's monitor, S5.8).
//!
//! Twice a second it reads how much memory there is, for the host and for the daemon's memory
//! cgroups, and how long processes waited for some; a [`Pool`] decides. Every decision is logged
//! and kept for `stats`. It tells the cache and the devices, too, which VMs there are, whenever
//! that changes; where there is no cache to size, that is all.

#[cfg(test)]
mod beside_a_scan;
pub mod grants;
pub mod pool;
mod sharing;

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use flowstone_block::{format_size, mutant};
use flowstone_cache::Cache;
use flowstone_memory::reading::Reader;
use flowstone_memory::sizer::{Change, Limits};
use tracing::info;

use self::pool::Pool;
use self::sharing::Sharing;
use crate::disks::Disks;
use crate::guest_agent::GuestAgents;

/// Two readings, and giving memory back, fit into the two seconds after which it is to be there.
const PERIOD: Duration = Duration::from_millis(500);
/// Decisions that are kept.
const DECISIONS_MAX: usize = 16;

/// A decision, as `stats` shows it.
#[derive(Clone, Debug)]
pub struct Decision {
    /// When, since the daemon started.
    pub at: Duration,
    /// What was decided.
    pub change: Change,
}

/// What a monitor sizes.
pub struct Caches {
    /// The sector cache, if there is one, and between which sizes it is kept.
    pub cache: Option<Arc<Cache>>,
    /// Nothing and nothing without one.
    pub limits: Limits,
    /// The file caches of guests, if they may connect.
    pub guests: Option<Arc<GuestAgents>>,
}

/// Watches over caches. Dropping it ends its thread.
pub struct ResourceMonitor {
    limits: Limits,
    decisions: Arc<Mutex<VecDeque<Decision>>>,
    /// Closed when the thread is to end.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ResourceMonitor {
    /// Sizes `caches` from now on, and shares them out between the VMs of `disks`. `start` is when
    /// the daemon started.
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
                decisions.push_back(Decision { at, change });
            }
        };
        let thread = Builder::new().name("memory".into()).stack_size(128 << 10).spawn(watch)?;
        Ok(Self { limits, decisions, stop: Some(stop), thread: Some(thread) })
    }

    /// Between which sizes the cache is kept.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// The last decisions, the oldest first.
    pub fn decisions(&self) -> Vec<Decision> {
        lock(&self.decisions).iter().cloned().collect()
    }
}

/// What the thread of a monitor keeps from one look to the next.
struct Watch {
    caches: Caches,
    disks: Arc<Disks>,
    reader: Reader,
    sharing: Sharing,
    pool: Pool,
    /// What the sector cache was told last.
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
                // Blocks that were on their way when it became smaller.
                cache.set_target(target);
            }
            if let Some(vms) = vms
                && !mutant("daemon.monitor.cache-hears-of-no-vms")
            {
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

fn lock(decisions: &Mutex<VecDeque<Decision>>) -> MutexGuard<'_, VecDeque<Decision>> {
    decisions.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for ResourceMonitor {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
