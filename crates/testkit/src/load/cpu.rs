//! CPU time of a process, in nanoseconds if the kernel provides them.
//!
//! The sum over `/proc/PID/task/*/schedstat` is exact but excludes ended threads; `/proc/PID/stat`
//! includes them but counts in ticks of 10 ms. Both are read; the exact one is used unless the
//! coarse one proves that it is incomplete.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use crate::{Error, Result};

/// Two ticks: the largest difference of the two sources by rounding alone.
const DOUBT: Duration = Duration::from_millis(20);

/// CPU time of a process at one moment.
#[derive(Clone, Debug)]
pub struct CpuSample {
    threads: BTreeMap<u32, Duration>,
    ticks: Duration,
}

impl CpuSample {
    /// Reads the CPU time of a process.
    pub fn take(pid: u32) -> Result<Self> {
        Ok(CpuSample { threads: thread_times(pid)?, ticks: tick_time(pid)? })
    }

    /// Returns the CPU time since `earlier`.
    pub fn since(&self, earlier: &CpuSample) -> Duration {
        let fine: Duration = self.threads.iter().map(|(id, &now)| spent(earlier, *id, now)).sum();
        let coarse = self.ticks.saturating_sub(earlier.ticks);
        if coarse <= fine + DOUBT { fine } else { coarse }
    }
}

fn spent(earlier: &CpuSample, thread: u32, now: Duration) -> Duration {
    now.saturating_sub(earlier.threads.get(&thread).copied().unwrap_or_default())
}

fn thread_times(pid: u32) -> Result<BTreeMap<u32, Duration>> {
    let directory = format!("/proc/{pid}/task");
    let entries =
        fs::read_dir(&directory).map_err(|e| Error::io(format!("list {directory}"), e))?;
    let mut times = BTreeMap::new();
    for entry in entries.flatten() {
        let Some(thread) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // A thread may end between listing and reading.
        let Ok(text) = fs::read_to_string(entry.path().join("schedstat")) else {
            continue;
        };
        let run_ns = text.split(' ').next().and_then(|word| word.parse().ok());
        times.insert(thread, Duration::from_nanos(run_ns.unwrap_or(0)));
    }
    Ok(times)
}

/// Returns utime + stime of the whole process, including ended threads.
fn tick_time(pid: u32) -> Result<Duration> {
    let path = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&path).map_err(|e| Error::io(format!("read {path}"), e))?;
    // The name in parentheses may contain anything; fields are counted from its end.
    let fields = text.rsplit(')').next().unwrap_or_default();
    let ticks: u64 =
        fields.split_whitespace().skip(11).take(2).filter_map(|f| f.parse::<u64>().ok()).sum();
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    Ok(Duration::from_nanos(ticks * (1_000_000_000 / per_second)))
}
