//! Reads Linux memory statistics: /proc/meminfo, pressure stall information, and memory cgroups of
//! either version.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::mutated;
use crate::sizer::{PLENTY_OF, Reading};

const MEMINFO: &str = "/proc/meminfo";
const PRESSURE: &str = "/proc/pressure/memory";
const CGROUPS: &str = "/sys/fs/cgroup";

/// Takes readings repeatedly.
pub struct Reader {
    groups: Vec<Group>,
    /// Time of the last reading, and the total stall time of processes by then, in microseconds.
    last: Option<(Instant, u64)>,
}

/// A memory cgroup that this process is in, or one above it.
#[derive(Debug, PartialEq, Eq)]
struct Group {
    folder: PathBuf,
    version: Version,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Reader {
    /// Finds the memory cgroups of this process.
    pub fn of_this_process() -> Self {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Self { groups: groups_of(&own, Path::new(CGROUPS)), last: None }
    }

    /// Takes a reading; `None` on a host without the statistics.
    pub fn read(&mut self) -> Option<Reading> {
        let meminfo = fs::read_to_string(MEMINFO).ok()?;
        let (mut available, mut total) = of_host(&meminfo)?;
        for group in &self.groups {
            let Some((limit, used)) = group.read() else { continue };
            total = total.min(limit);
            available = available.min(limit.saturating_sub(used));
        }
        let is_short = available <= total / PLENTY_OF;
        Some(Reading { available, total, waiting: self.waiting(is_short) })
    }

    /// Returns the share of the time since the last call in which some process stalled on memory:
    /// of the process's own cgroup if it has that statistic, else of the host.
    fn waiting(&mut self, is_short: bool) -> f64 {
        let own = self.groups.first().map(|group| group.folder.join("memory.pressure"));
        let own = own.and_then(|path| fs::read_to_string(path).ok());
        let is_own = own.is_some();
        let text = own.or_else(|| fs::read_to_string(PRESSURE).ok()).unwrap_or_default();
        let Some(waited) = waited(&text) else { return 0.0 };
        let now = Instant::now();
        let last = self.last.replace((now, waited));
        let part = last.map_or(0.0, |(at, before)| {
            let time = now.duration_since(at).as_micros().max(1) as f64;
            waited.saturating_sub(before) as f64 / time
        });
        if waits_count(is_own, is_short) { part } else { 0.0 }
    }
}

/// Returns whether the stalls count for this process. Processes of the host may have stalled on the
/// limits of their own cgroups, or on refaults of file pages that they have evicted themselves.
fn waits_count(is_own: bool, is_short: bool) -> bool {
    let counts = is_own || is_short;
    mutated("memory.reading.counts-all-waits", counts, true)
}

/// Returns the lowest memory limit of this process's cgroups; `None` if it exceeds the host's
/// memory.
pub fn memory_limit() -> Option<u64> {
    let limits = Reader::of_this_process().groups;
    let limit = limits.iter().filter_map(|group| Some(group.read()?.0)).min()?;
    let (_, total) = of_host(&fs::read_to_string(MEMINFO).ok()?)?;
    (limit < total).then_some(limit)
}

/// Returns the host's memory including swap.
pub fn host_memory() -> Option<u64> {
    let meminfo = fs::read_to_string(MEMINFO).ok()?;
    let kib = |name: &str| number_after(&meminfo, name);
    Some((kib("MemTotal:")? + kib("SwapTotal:").unwrap_or(0)) << 10)
}

impl Group {
    /// Returns the group's limit and its usage, without reclaimable memory as in a host's
    /// MemAvailable: page cache, inodes and dentries. (Version 1 counts the latter two in the
    /// group's kernel memory; half of that is taken for them.)
    fn read(&self) -> Option<(u64, u64)> {
        let (limit, used, prefix) = match self.version {
            Version::One => ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
            Version::Two => ("memory.max", "memory.current", ""),
        };
        let text = |name: &str| fs::read_to_string(self.folder.join(name)).ok();
        let number = |name: &str| text(name)?.trim().parse::<u64>().ok();
        // "max" is not a number: there is no limit.
        let (limit, used) = (number(limit)?, number(used)?);
        let stat = text("memory.stat").unwrap_or_default();
        let pages = |name: &str| number_after(&stat, &format!("{prefix}{name}")).unwrap_or(0);
        let inodes = match self.version {
            Version::One => number("memory.kmem.usage_in_bytes").unwrap_or(0) / 2,
            Version::Two => pages("slab_reclaimable"),
        };
        let droppable = pages("inactive_file") + pages("active_file") + inodes;
        Some((limit, used.saturating_sub(droppable)))
    }
}

/// Returns the memory cgroups in /proc/self/cgroup, the innermost first.
fn groups_of(own: &str, root: &Path) -> Vec<Group> {
    let mut groups = Vec::new();
    for line in own.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (version, root) = match controllers {
            "" => (Version::Two, root.to_owned()),
            _ if controllers.split(',').any(|it| it == "memory") => {
                (Version::One, root.join("memory"))
            }
            _ => continue,
        };
        let path = path.trim_start_matches('/');
        let folders = Path::new(path).ancestors().map(|path| root.join(path));
        let folder_of = |folder| Group { folder, version };
        groups.extend(folders.map(folder_of));
    }
    // Version 1 and version 2 never both have the memory controller.
    groups.retain(|group| match group.version {
        Version::One => group.folder.join("memory.limit_in_bytes").exists(),
        Version::Two => group.folder.join("memory.current").exists(),
    });
    groups
}

/// Returns the available and the total bytes.
fn of_host(meminfo: &str) -> Option<(u64, u64)> {
    let kib = |name: &str| number_after(meminfo, name);
    Some((kib("MemAvailable:")? << 10, kib("MemTotal:")? << 10))
}

/// Returns the number after `name` at the start of a line.
pub fn number_after(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_whitespace);
    lines.find_map(|mut words| {
        let found = words.next() == Some(name);
        if found { words.next()?.parse().ok() } else { None }
    })
}

/// Returns the time in which some process stalled, in microseconds since the host's boot.
fn waited(pressure: &str) -> Option<u64> {
    let some = pressure.lines().find(|line| line.starts_with("some "))?;
    some.rsplit_once("total=")?.1.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_says_what_it_has() {
        let meminfo = "MemTotal:       24660452 kB\nMemFree: 1 kB\nMemAvailable:   23000000 kB\n";
        assert_eq!(of_host(meminfo), Some((23_000_000 << 10, 24_660_452 << 10)));
        assert_eq!(of_host("MemTotal: 1 kB\n"), None);
        let pressure =
            "some avg10=0.00 avg60=0.12 avg300=0.05 total=1234567\nfull avg10=0.00 total=9\n";
        assert_eq!(waited(pressure), Some(1_234_567));
        assert_eq!(waited(""), None);
        let reading = Reader::of_this_process().read().expect("this is Linux");
        assert!(reading.available > 0 && reading.available <= reading.total);
    }

    /// On a host with plenty of memory, stalls of other processes do not count.
    #[test]
    fn waits_of_others_count_while_memory_is_short() {
        let all = [(true, true), (true, false), (false, true), (false, false)];
        assert_eq!(all.map(|(own, short)| waits_count(own, short)), [true, true, true, false]);
    }

    #[test]
    fn limits_of_both_versions_of_cgroups_are_found_up_to_the_root() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for (folder, limit) in [("memory/vm/flow", "1000000"), ("memory/vm", "9223372036854771712")]
        {
            write(&format!("{folder}/memory.limit_in_bytes"), limit);
            write(&format!("{folder}/memory.usage_in_bytes"), "600000\n");
            write(
                &format!("{folder}/memory.stat"),
                "cache 7\ntotal_inactive_file 60000\ntotal_active_file 40000\n",
            );
        }
        let own = "12:pids:/other\n4:cpu,memory:/vm/flow\n0::/vm/flow\n";
        let groups = groups_of(own, root.path());
        let read: Vec<_> = groups.iter().map(|group| group.read().unwrap()).collect();
        assert_eq!(read, [(1_000_000, 500_000), (9_223_372_036_854_771_712, 500_000)]);

        write("slice/memory.max", "max\n");
        write("slice/memory.current", "5\n");
        write("slice/flow/memory.max", "300\n");
        write("slice/flow/memory.current", "200\n");
        write(
            "slice/flow/memory.stat",
            "file 9\ninactive_file 7\nactive_file 5\nslab_reclaimable 3\n",
        );
        let groups = groups_of("0::/slice/flow\n", root.path());
        let read: Vec<_> = groups.iter().map(Group::read).collect();
        assert_eq!(read, [Some((300, 185)), None]);
    }
}
