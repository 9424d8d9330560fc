//! Idle time of the host's CPUs, from `/proc/stat`.

use std::fs;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity};

use crate::CpuList;

/// Ticks of the kernel's accounting, a hundredth of a second each.
const TICKS_PER_SECOND: f64 = 100.0;

/// Maximum time between two samples that are compared.
const FRESH: Duration = Duration::from_secs(1);

/// Idle time of each CPU between the last two samples.
#[derive(Default)]
pub struct IdleCpus {
    last: Option<(Instant, Vec<(usize, u64)>)>,
    /// Idle fraction of each CPU between the last two samples.
    idle: Vec<(usize, f64)>,
}

impl IdleCpus {
    /// Takes a sample. Idle times are known after the second one.
    pub fn look(&mut self) {
        let Ok(text) = fs::read_to_string("/proc/stat") else { return };
        let (now, ticks) = (Instant::now(), idle_ticks(&text));
        // Old idle times say nothing of now.
        self.idle.clear();
        if let Some((then, before)) = &self.last
            && now - *then < FRESH
        {
            let most = (now - *then).as_secs_f64() * TICKS_PER_SECOND;
            let part = |(cpu, ticks): &(usize, u64)| {
                let (_, then) = before.iter().find(|(other, _)| other == cpu)?;
                Some((*cpu, (ticks.saturating_sub(*then) as f64 / most.max(1e-9)).min(1.0)))
            };
            self.idle = ticks.iter().filter_map(part).collect();
        }
        self.last = Some((now, ticks));
    }

    /// Returns the idle time of these CPUs (empty: of all that the calling thread may use), in
    /// CPUs.
    pub fn spare(&self, cpus: &CpuList) -> f64 {
        let allowed = if cpus.is_empty() { sched_getaffinity(None).ok() } else { None };
        let counts = |cpu: usize| {
            allowed
                .map_or_else(|| cpus.contains(cpu), |set| cpu < CpuSet::MAX_CPU && set.is_set(cpu))
        };
        self.idle.iter().filter(|(cpu, _)| counts(*cpu)).map(|(_, part)| part).sum()
    }
}

/// Returns the ticks that each CPU has been idle since boot, I/O wait included.
fn idle_ticks(stat: &str) -> Vec<(usize, u64)> {
    let cpu = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let number = words.next()?.strip_prefix("cpu")?.parse().ok()?;
        // user, nice, system, idle, iowait
        let mut ticks = words.skip(3).map(|word| word.parse::<u64>().ok());
        Some((number, ticks.next()?? + ticks.next()??))
    };
    stat.lines().filter_map(cpu).collect()
}

#[cfg(test)]
impl IdleCpus {
    /// Makes a state in which `cpus` CPUs are idle.
    pub fn made_up(cpus: usize) -> Self {
        Self { last: None, idle: (0..cpus).map(|cpu| (cpu, 1.0)).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_ticks_are_read_for_each_cpu() {
        let stat = "cpu  67316 0 15753 73897 5997 0 274 54 0 0\n\
                    cpu0 30544 0 7713 39784 3672 0 33 23 0 0\n\
                    cpu7 36772 0 8039 34112 2325 0 241 31 0 0\n\
                    intr 1446807 0 0\nctxt 3198988\n";
        assert_eq!(idle_ticks(stat), [(0, 39784 + 3672), (7, 34112 + 2325)]);
    }

    #[test]
    fn what_a_busy_thread_uses_is_not_spare() {
        let mut idle = IdleCpus::default();
        let all = CpuList::default();
        assert!(idle.spare(&all) == 0.0, "nothing is known after no look");
        idle.look();
        let began = Instant::now();
        while began.elapsed().as_millis() < 200 {
            std::hint::spin_loop();
        }
        idle.look();
        let cpus = std::thread::available_parallelism().unwrap().get() as f64;
        let spare = idle.spare(&all);
        assert!((0.0..=cpus - 0.5).contains(&spare), "{spare} of {cpus}");
    }
}
