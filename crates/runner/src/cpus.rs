//! Lists of CPUs as `taskset` writes them: `0`, `2-5`, `0,2,4-7`.

use std::str::FromStr;
use std::{fmt, io};

use rustix::process::setpriority_process;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// CPUs for threads, in the order given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuList(Vec<usize>);

impl CpuList {
    /// Returns whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of CPUs in the list.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether the list contains `cpu`.
    pub fn contains(&self, cpu: usize) -> bool {
        self.0.contains(&cpu)
    }

    /// Iterates over the CPUs.
    pub fn iter(&self) -> impl Iterator<Item = usize> {
        self.0.iter().copied()
    }

    /// Returns the CPU for thread number `index`, round robin; `None` if the list is empty.
    pub fn for_thread(&self, index: usize) -> Option<usize> {
        (!self.0.is_empty()).then(|| self.0[index % self.0.len()])
    }
}

impl FromIterator<usize> for CpuList {
    fn from_iter<T: IntoIterator<Item = usize>>(cpus: T) -> Self {
        Self(cpus.into_iter().collect())
    }
}

impl FromStr for CpuList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let explain = || format!("`{text}` is not a list of CPUs; write e.g. 0,2-5");
        let number = |part: &str| {
            part.parse::<usize>().ok().filter(|cpu| *cpu < CpuSet::MAX_CPU).ok_or_else(explain)
        };
        let mut cpus = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let range = number(first)?..=number(last)?;
            if range.is_empty() {
                return Err(explain());
            }
            cpus.extend(range);
        }
        Ok(Self(cpus))
    }
}

impl fmt::Display for CpuList {
    /// Writes the list in canonical form, runs as ranges: `0-3,16`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = self.0.chunk_by(|one, next| one + 1 == *next).map(|run| match run {
            [first, .., last] => format!("{first}-{last}"),
            _ => run[0].to_string(),
        });
        f.write_str(&runs.collect::<Vec<_>>().join(","))
    }
}

impl From<usize> for CpuList {
    fn from(cpu: usize) -> Self {
        Self(vec![cpu])
    }
}

/// Returns the CPUs that the calling thread may use; empty if the kernel does not say.
pub fn of_this_thread() -> CpuList {
    let set = sched_getaffinity(None);
    set.map_or_else(
        |_| CpuList::default(),
        |set| (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect(),
    )
}

/// Pins the calling thread to these CPUs; an empty list changes nothing.
pub fn pin_this_thread(cpus: &CpuList) -> io::Result<()> {
    if cpus.is_empty() {
        return Ok(());
    }
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(cpu));
    sched_setaffinity(None, &set).map_err(io::Error::from)
}

/// Sets the niceness of the calling thread. Less than that of the process takes `CAP_SYS_NICE`, or
/// a limit (`RLIMIT_NICE`) that allows it.
pub fn set_niceness_of_this_thread(nice: i8) -> io::Result<()> {
    // Linux takes no process for the calling thread.
    setpriority_process(None, nice.into()).map_err(io::Error::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_ranges_are_read_in_order() {
        assert_eq!("0,2-4,1".parse(), Ok(CpuList(vec![0, 2, 3, 4, 1])));
        for text in ["0", "0,2-4,1", "5,3", "0-1"] {
            assert_eq!(text.parse::<CpuList>().unwrap().to_string(), text);
        }
        for text in ["", "a", "3-1", "1,", "-1", "99999999"] {
            assert!(text.parse::<CpuList>().is_err(), "{text} was accepted");
        }
    }

    #[test]
    fn threads_take_turns_on_the_cpus() {
        let list: CpuList = "3,5".parse().unwrap();
        assert_eq!([0, 1, 2].map(|thread| list.for_thread(thread)), [Some(3), Some(5), Some(3)]);
        assert_eq!(CpuList::default().for_thread(0), None);
    }
}
