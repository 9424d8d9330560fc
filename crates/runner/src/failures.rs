//! Failed requests of a disk: counts by errno, and a rate-limited log line for each errno.
//!
//! The guest's own log may be all that an operator has of a failure, or be out of reach. Nothing
//! here runs for a request that succeeds.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use flowstone_block::{Errno, LogBudget, Metric, MetricKind, OpKind};
use serde::Serialize;
use tracing::error;

/// Failures of all queues of one disk.
#[derive(Default)]
pub struct Failures {
    disk: String,
    /// Count and log budget by errno.
    met: Mutex<BTreeMap<i32, Met>>,
    watcher: OnceLock<Watcher>,
}

/// Callback for failed requests, called as often as a log line is written.
type Watcher = Box<dyn Fn(OpKind, Errno) + Send + Sync>;

struct Met {
    count: u64,
    log: LogBudget,
}

/// One errno in the output of `stats`.
#[derive(Debug, Serialize, PartialEq, Eq)]
pub struct FailureReport {
    errno: i32,
    text: String,
    count: u64,
}

impl Failures {
    /// Metrics of failures.
    pub const METRICS: &[Metric<Self>] = &[Metric::each(
        MetricKind::Counter,
        "flowstone_errors_total",
        "errno",
        "Failed requests, by error number",
        |it, add| {
            for (errno, met) in &*it.met() {
                add(&errno.to_string(), met.count as f64);
            }
        },
    )];

    /// Makes the failures of the disk called `disk`.
    pub fn of(disk: String) -> Self {
        Self { disk, ..Self::default() }
    }

    /// Sets the callback for failures from now on. The first one set stays.
    pub fn watch(&self, watcher: Watcher) {
        let _ = self.watcher.set(watcher);
    }

    fn met(&self) -> MutexGuard<'_, BTreeMap<i32, Met>> {
        self.met.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a failed request. Logs it unless this errno was logged recently.
    #[cold]
    pub fn add(&self, kind: OpKind, errno: Errno) {
        let mut all = self.met();
        let fresh = || Met { count: 0, log: LogBudget::of_one() };
        let met = all.entry(errno.raw_os_error()).or_insert_with(fresh);
        met.count += 1;
        let line = met.log.spend();
        drop(all);
        // The guest asked for an unsupported operation, and its answer says so.
        if errno != Errno::OPNOTSUPP
            && let Some(unsaid) = line
        {
            let (request, advice) = (kind.name(), advice(errno));
            self.watcher.get().into_iter().for_each(|watcher| watcher(kind, errno));
            error!(disk = self.disk, unsaid, "a guest's {request} failed: {errno}; {advice}");
        }
    }

    /// Returns the report of all errnos, in ascending order.
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
