//! A disk at one device.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::host::Device;
use crate::DiskKey;

/// A disk at one device, registered there while this exists.
pub struct Member {
    pub device: Arc<Device>,
    pub key: DiskKey,
    pub held_back: Arc<HeldBack>,
}

impl Drop for Member {
    fn drop(&mut self) {
        self.device.lock().scheduler.remove_disk(self.key);
    }
}

/// Counts of a disk's requests that waited for their turn, and of its syncs, at all devices.
#[derive(Default)]
pub struct HeldBack {
    requests: AtomicU64,
    ns: AtomicU64,
    syncs: AtomicU64,
}

impl HeldBack {
    pub fn count(&self, requests: u64, ns: u64) {
        self.requests.fetch_add(requests, Ordering::Relaxed);
        self.ns.fetch_add(ns, Ordering::Relaxed);
    }

    pub fn count_sync(&self) {
        self.syncs.fetch_add(1, Ordering::Relaxed);
    }

    pub fn syncs(&self) -> u64 {
        self.syncs.load(Ordering::Relaxed)
    }

    /// Returns the number of requests that waited, and their total waiting time.
    pub fn read(&self) -> (u64, Duration) {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (get(&self.requests), Duration::from_nanos(get(&self.ns)))
    }
}
