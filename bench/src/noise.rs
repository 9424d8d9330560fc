//! How much of the machine others used while something was measured.
//!
//! Busy time, minus that of this program and of the children it has reaped, belongs to other
//! processes. A few percent are the kernel's own work for the disk; much more means that the figure
//! is about the neighbours, and the report says so.

use std::fs;
use std::time::Instant;

/// Shares above this spoil a measurement.
pub const LIMIT_PERCENT: f64 = 10.0;

/// CPU time used so far, in ticks.
#[derive(Clone, Copy, Debug)]
pub struct Noise {
    began: Instant,
    machine: u64,
    own: u64,
}

impl Noise {
    /// Begins to look.
    pub fn start() -> Self {
        Noise { began: Instant::now(), machine: machine_ticks(), own: own_ticks() }
    }

    /// The share of the machine that others used since the start. Children count as our own once
    /// they have been reaped.
    pub fn others_percent(&self) -> f64 {
        let now = Noise::start();
        let busy = (now.machine - self.machine) as f64;
        let own = (now.own - self.own) as f64;
        let per_second = rustix::param::clock_ticks_per_second() as f64;
        let cpus = std::thread::available_parallelism().map_or(1.0, |n| n.get() as f64);
        let all = now.began.duration_since(self.began).as_secs_f64() * cpus * per_second;
        ((busy - own) / all * 100.0).max(0.0)
    }
}

/// User, nice, system, irq, softirq and steal time of all CPUs; idle and iowait left out.
fn machine_ticks() -> u64 {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = text.lines().next().unwrap_or_default();
    let fields: Vec<u64> = numbers(line.trim_start_matches("cpu"));
    fields.iter().enumerate().filter(|(at, _)| matches!(at, 0..=2 | 5..=7)).map(|(_, &t)| t).sum()
}

/// utime, stime, cutime and cstime of this process.
fn own_ticks() -> u64 {
    let text = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name in parentheses may hold anything; fields are counted from its end.
    let fields = text.rsplit(')').next().unwrap_or_default();
    let words: Vec<&str> = fields.split_whitespace().skip(11).take(4).collect();
    numbers(&words.join(" ")).iter().sum()
}

fn numbers(text: &str) -> Vec<u64> {
    text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_work_is_not_noise() {
        let noise = Noise::start();
        let before = own_ticks();
        while noise.began.elapsed().as_millis() < 200 {
            std::hint::spin_loop();
        }
        assert!(own_ticks() > before, "200 ms of spinning are several ticks");
        assert!((0.0..=100.0).contains(&noise.others_percent()));
    }
}
