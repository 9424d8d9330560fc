//! The resource monitor: the cache takes memory while the host has some to spare, and gives it back
//! when the host runs short (MultiCache's monitor, S5.8).
//!
//! Twice a second it reads how much memory there is, for the host and for the daemon's memory
//! cgroups, and how long processes waited for some; [`sizer`] decides. Every decision is logged and
//! kept for `stats`. It tells the cache, too, which VMs there are, whenever that changes.

#[cfg(test)]
mod beside_a_scan;
pub mod reading;
mod sharing;
pub mod sizer;

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use flowstone_block::format_size;
use flowstone_cache::Cache;
use tracing::info;

use self::reading::Reader;
use self::sharing::Sharing;
use self::sizer::{Change, Limits, Sizer};
use crate::disks::Disks;

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

/// Watches over a cache. Dropping it ends its thread.
pub struct ResourceMonitor {
    limits: Limits,
    decisions: Arc<Mutex<VecDeque<Decision>>>,
    /// Closed when the thread is to end.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ResourceMonitor {
    /// Sizes `cache` within `limits` from now on, and shares it out between the VMs of `disks`.
    /// `start` is when the daemon started.
    pub fn start(
        cache: Arc<Cache>,
        limits: Limits,
        disks: Arc<Disks>,
        start: Instant,
    ) -> io::Result<Self> {
        let decisions: Arc<Mutex<VecDeque<Decision>>> = Arc::default();
        let (stop, stopped) = channel();
        let kept = Arc::clone(&decisions);
        let watch = move || {
            let mut reader = Reader::new();
            let mut sizer = Sizer::new(limits);
            let mut sharing = Sharing::default();
            let mut last = start.elapsed();
            while stopped.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                let at = start.elapsed();
                cache.pass(at - std::mem::replace(&mut last, at));
                let target = cache.target_bytes();
                if cache.resident_bytes() > target {
                    // Blocks that were on their way when it became smaller.
                    cache.set_target(target);
                }
                if let Some(vms) = sharing.look(&disks.serving()) {
                    cache.set_vms(vms);
                }
                let Some(reading) = reader.read() else { continue };
                let hit_ratio = |bytes| cache.weighed_hit_ratio_of(bytes);
                let held = cache.resident_bytes();
                let Some(change) = sizer.decide(at, reading, held, &hit_ratio) else { continue };
                cache.set_target(change.to);
                let to = format_size(cache.target_bytes());
                info!("the cache may take {to} from now on: {}", change.reason);
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
