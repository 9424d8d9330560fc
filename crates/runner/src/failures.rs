//! Requests of a disk that its host has refused: how many for which reason, and a line in the log.
//!
//! A guest's own log may be all that an operator has of it, or be out of reach. Nothing here is on
//! the way of a request that succeeds.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use flowstone_block::{Errno, LogBudget, OpKind};
use serde::Serialize;
use tracing::error;

/// Of all queues of one disk.
#[derive(Default)]
pub struct Failures {
    disk: String,
    /// By error number.
    met: Mutex<BTreeMap<i32, Met>>,
    watcher: OnceLock<Watcher>,
}

/// Hears of requests that have failed, as often as the log does.
type Watcher = Box<dyn Fn(OpKind, Errno) + Send + Sync>;

struct Met {
    count: u64,
    log: LogBudget,
}

/// What `stats` says of one reason.
#[derive(Debug, Serialize, PartialEq, Eq)]
pub struct FailureReport {
    errno: i32,
    text: String,
    count: u64,
}

impl Failures {
    /// Of the disk with this name.
    pub fn of(disk: String) -> Self {
        Self { disk, ..Self::default() }
    }

    /// `watcher` hears of requests that have failed from now on. The first one stays.
    pub fn watch(&self, watcher: Watcher) {
        let _ = self.watcher.set(watcher);
    }

    fn met(&self) -> MutexGuard<'_, BTreeMap<i32, Met>> {
        self.met.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request that has failed. Says so if nothing was said for this reason of late.
    #[cold]
    pub fn add(&self, kind: OpKind, errno: Errno) {
        let mut all = self.met();
        let fresh = || Met { count: 0, log: LogBudget::of_one() };
        let met = all.entry(errno.raw_os_error()).or_insert_with(fresh);
        met.count += 1;
        let line = met.log.spend();
        drop(all);
        // The guest asked for what there is not, and is told so.
        if errno != Errno::OPNOTSUPP
            && let Some(unsaid) = line
        {
            let (request, advice) = (kind.name(), advice(errno));
            self.watcher.get().into_iter().for_each(|watcher| watcher(kind, errno));
            error!(disk = self.disk, unsaid, "a guest's {request} failed: {errno}; {advice}");
        }
    }

    /// How many there were for each reason: its number, and its count.
    pub fn counts(&self) -> Vec<(i32, u64)> {
        self.met().iter().map(|(errno, met)| (*errno, met.count)).collect()
    }

    /// All reasons, by number.
    pub fn report(&self) -> Vec<FailureReport> {
        let text = |errno| Errno::from_raw_os_error(errno).to_string();
        let all = self.met();
        let each = all.iter().map(|(errno, met)| (*errno, met.count));
        each.map(|(errno, count)| FailureReport { errno, text: text(errno), count }).collect()
    }
}

fn advice(errno: Errno) -> &'static str {
    match errno {
        Errno::NOSPC | Errno::DQUOT => "free space on the host, and writes work again",
        Errno::FAULT => "look whether the guest's memory has a place on the host",
        Errno::NOMEM => "free memory on the host",
        _ => "see the host's kernel log, and `flowstone check` when the image is not served",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A full host failed 1,080 writes: no line, and no reason in `stats`.
    #[test]
    fn failures_are_counted_by_their_reason() {
        let failures = Failures::of("vm1".into());
        for _ in 0..1080 {
            failures.add(OpKind::Write, Errno::NOSPC);
        }
        failures.add(OpKind::Read, Errno::IO);
        let report = failures.report();
        let counts: Vec<_> = report.iter().map(|it| (it.errno, it.count)).collect();
        assert_eq!(counts, [(Errno::IO.raw_os_error(), 1), (Errno::NOSPC.raw_os_error(), 1080)]);
        assert!(report[1].text.contains("No space left"), "{report:?}");
    }
}
