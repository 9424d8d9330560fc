//! Probes a source in trouble until it answers.

use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::files::Files;
use crate::lock::lock;

/// Pause between two probes.
const PAUSE: Duration = Duration::from_secs(1);

/// The probe; see the module.
#[derive(Default)]
pub struct Probe {
    wanted: Mutex<bool>,
    bell: Condvar,
}

impl Probe {
    /// Requests a probe.
    pub fn ask(&self) {
        *lock(&self.wanted) = true;
        self.bell.notify_one();
    }

    /// Runs the probe, on a thread of its own, which may hang.
    pub fn run(&self, files: &Files) {
        loop {
            let mut wanted = lock(&self.wanted);
            while !std::mem::take(&mut *wanted) {
                wanted = self.bell.wait(wanted).unwrap_or_else(PoisonError::into_inner);
            }
            drop(wanted);
            files.hearing.heard(&files.source.probe());
            thread::sleep(PAUSE);
        }
    }
}
