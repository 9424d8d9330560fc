//! Metrics of the process itself, from /proc.

use std::fs;

use flowstone_host::stat_field;
use flowstone_memory::reading::number_after;
use rustix::process::{Resource, getrlimit};

use super::Families;
use super::families::{CPU, DESCRIPTORS, DESCRIPTORS_MAX, RESIDENT, START, THREADS};

/// Kernel ticks per second (`USER_HZ`; the same on all supported hosts).
const TICKS: f64 = 100.0;

pub fn collect(families: &mut Families) {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    if let Some(kib) = number_after(&status, "VmRSS:") {
        families.add(&RESIDENT, &[], (kib << 10) as f64);
    }
    if let Some(threads) = number_after(&status, "Threads:") {
        families.add(&THREADS, &[], threads as f64);
    }
    if let Ok(descriptors) = fs::read_dir("/proc/self/fd") {
        families.add(&DESCRIPTORS, &[], descriptors.count() as f64);
    }
    if let Some(limit) = getrlimit(Resource::Nofile).current {
        families.add(&DESCRIPTORS_MAX, &[], limit as f64);
    }
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let seconds = |field| stat_field(&stat, field).map(|ticks| ticks as f64 / TICKS);
    if let (Some(user), Some(system), Some(start)) = (seconds(14), seconds(15), seconds(22)) {
        families.add(&CPU, &[], user + system);
        let boot = fs::read_to_string("/proc/stat").unwrap_or_default();
        if let Some(boot) = number_after(&boot, "btime ") {
            families.add(&START, &[], boot as f64 + start);
        }
    }
}
