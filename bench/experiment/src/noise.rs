//! Influences on a figure besides the program: other processes, and where the host runs this
//! machine's CPUs.
//!
//! Busy time, minus that of this program and of the children it has reaped, belongs to other
//! processes. A few percent are the kernel's own work for the disk; a larger share means that the
//! figure is invalid, and the report says so.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Result, bail, ensure};
use rustix::thread::{CpuSet, sched_setaffinity};

/// The figure: CPU share used by other processes during a measurement.
pub const OTHERS_PERCENT: &str = "others_percent";
/// The figure: time in which two CPUs each write a line of memory once, in turn.
pub const HANDOVER_NS: &str = "handover_ns";
/// Limit above which a measurement is invalid.
pub const LIMIT_PERCENT: f64 = 10.0;

/// CPU time used so far, in ticks.
#[derive(Clone, Copy, Debug)]
pub struct Noise {
    began: Instant,
    machine: u64,
    own: u64,
}

impl Noise {
    /// Starts a measurement.
    pub fn start() -> Self {
        Noise { began: Instant::now(), machine: machine_ticks(), own: own_ticks() }
    }

    /// Returns the share of the machine used by others since the start. Children count as our own
    /// once they have been reaped.
    pub fn others_percent(&self) -> f64 {
        let now = Noise::start();
        let busy = (now.machine - self.machine) as f64;
        let own = (now.own - self.own) as f64;
        let per_second = rustix::param::clock_ticks_per_second() as f64;
        let cpus = thread::available_parallelism().map_or(1.0, |n| n.get() as f64);
        let all = now.began.duration_since(self.began).as_secs_f64() * cpus * per_second;
        ((busy - own) / all * 100.0).max(0.0)
    }
}

/// Turns of a measurement of [`handover_ns`], and how often it is made.
const TURNS: u32 = 40_000;
const TRIES: usize = 5;

/// Returns the figure [`HANDOVER_NS`], the least of some tries. In a virtual machine it changes
/// when the host moves a CPU.
pub fn handover_ns(cpus: [usize; 2]) -> Result<f64> {
    let tries = (0..TRIES).map(|_| handover_once(cpus)).collect::<Result<Vec<f64>>>()?;
    Ok(tries.into_iter().fold(f64::INFINITY, f64::min))
}

fn handover_once(cpus: [usize; 2]) -> Result<f64> {
    let (line, is_alone) = (AtomicU32::new(0), AtomicBool::new(false));
    // Each adds one when it sees that the other has.
    let take_turns = |cpu: usize, mine: u32| -> Result<f64> {
        let mut set = CpuSet::new();
        set.set(cpu);
        if let Err(errno) = sched_setaffinity(None, &set) {
            is_alone.store(true, Ordering::Relaxed);
            bail!("CPU {cpu}: {errno}");
        }
        let began = Instant::now();
        for turn in 0..TURNS {
            let expected = 2 * turn + mine;
            while line.load(Ordering::Acquire) != expected {
                ensure!(!is_alone.load(Ordering::Relaxed), "the other CPU is not there");
                std::hint::spin_loop();
            }
            line.store(expected + 1, Ordering::Release);
        }
        Ok(began.elapsed().as_nanos() as f64 / f64::from(TURNS))
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| take_turns(cpus[1], 1));
        let one = scope.spawn(|| take_turns(cpus[0], 0));
        let [one, other] = [one, other].map(|it| it.join().expect("no thread panics"));
        Ok(one?.min(other?))
    })
}

/// Returns user, nice, system, irq, softirq and steal time of all CPUs, without idle and iowait.
fn machine_ticks() -> u64 {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = text.lines().next().unwrap_or_default();
    let fields: Vec<u64> = numbers(line.trim_start_matches("cpu"));
    fields.iter().enumerate().filter(|(at, _)| matches!(at, 0..=2 | 5..=7)).map(|(_, &t)| t).sum()
}

/// Returns utime, stime, cutime and cstime of this process.
fn own_ticks() -> u64 {
    let text = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name in parentheses may contain anything; fields are counted from its end.
    let fields = text.rsplit(')').next().unwrap_or_default();
    let times = fields.split_whitespace().skip(11).take(4);
    times.filter_map(|word| word.parse::<u64>().ok()).sum()
}

fn numbers(text: &str) -> Vec<u64> {
    text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use rustix::time::{ClockId, Timespec, clock_gettime};

    use super::*;

    /// The thread that can run would wait for the other one for ever.
    #[test]
    fn a_cpu_that_is_not_there_is_named() {
        let error = handover_ns([0, 1023]).unwrap_err().to_string();
        assert!(error.contains("CPU"), "{error}");
    }

    #[test]
    fn own_work_is_not_noise() {
        let noise = Noise::start();
        let before = own_ticks();
        // Of CPU time: on a busy machine 200 ms may pass without any.
        let used = || clock_gettime(ClockId::ProcessCPUTime);
        let end = used() + Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
        while used() < end {
            std::hint::spin_loop();
        }
        assert!(own_ticks() > before, "200 ms on a CPU are several ticks");
        assert!((0.0..=100.0).contains(&noise.others_percent()));
    }
}
