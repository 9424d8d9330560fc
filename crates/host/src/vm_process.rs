//! Properties of a VM's process, from /proc.

use std::path::{Path, PathBuf};

use flowstone_block::{Peer, mutated};

use crate::peer_called;

/// Characters of a VM's name that are kept: the monitor may use any length.
const NAME_CHARS_MAX: usize = 64;

/// A process that runs a VM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VmProcess {
    /// Number of vCPUs, if they can be counted.
    pub cpus: Option<u32>,
    /// Name of the VM on the command line.
    pub name: Option<String>,
}

impl VmProcess {
    /// Reads a process. Returns `None` if it is hidden or has ended, also if its PID has been
    /// reused.
    pub fn look(peer: Peer) -> Option<Self> {
        peer.start?;
        let now = peer_called(peer.pid);
        let is_it = mutated("daemon.vms.takes-a-number-for-its-process", now == peer, true);
        let proc = is_it.then(|| PathBuf::from(format!("/proc/{}", peer.pid)))?;
        let command = std::fs::read(proc.join("cmdline")).unwrap_or_default();
        let words: Vec<_> = command.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
        let option = |option: &str| {
            let is_it = |word: &str| word == option || word.strip_prefix('-') == Some(option);
            let at = words.iter().position(|word| is_it(word))?;
            words.get(at + 1).map(|value| value.as_ref())
        };
        let cpus = kvm_vcpus(&proc).or_else(|| option("-smp").and_then(smp));
        let name = option("-name").and_then(|value| part(value, "guest"));
        let name = name.map(|name| name.chars().take(NAME_CHARS_MAX).collect());
        Some(Self { cpus, name })
    }
}

/// Counts vCPUs: KVM gives the process a descriptor for each. Reading them requires the process's
/// user, or root.
fn kvm_vcpus(proc: &Path) -> Option<u32> {
    let open = std::fs::read_dir(proc.join("fd")).ok()?;
    let links = open.flatten().filter_map(|file| std::fs::read_link(file.path()).ok());
    let count = links.filter(|target| is_vcpu(&target.to_string_lossy())).count();
    u32::try_from(count).ok().filter(|count| *count > 0)
}

/// Returns whether a link is that of a vCPU, not of its statistics (`anon_inode:kvm-vcpu-stats:0`).
fn is_vcpu(target: &str) -> bool {
    target.starts_with("anon_inode:kvm-vcpu:")
}

/// Parses the vCPUs of QEMU's option `-smp`: `4`, `cpus=4,maxcpus=8`, or a topology.
fn smp(value: &str) -> Option<u32> {
    if let Some(cpus) = part(value, "cpus") {
        return cpus.parse().ok();
    }
    let levels = ["drawers", "books", "sockets", "dies", "clusters", "modules", "cores", "threads"];
    let counts = levels.iter().filter_map(|level| part(value, level)?.parse::<u32>().ok());
    counts.reduce(u32::saturating_mul).or_else(|| part(value, "maxcpus")?.parse().ok())
}

/// Returns the value of a key in a list such as `guest=web,debug-threads=on`. The first word may
/// lack its key, but only for the keys `cpus` and `guest`.
fn part<'list>(list: &'list str, key: &str) -> Option<&'list str> {
    let first = list.split(',').next().filter(|word| !word.contains('='));
    let named = list.split(',').filter_map(|word| word.split_once('='));
    let value = named.filter(|(name, _)| *name == key).map(|(_, value)| value).next();
    value.or(first.filter(|_| matches!(key, "cpus" | "guest")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_found_and_runs_no_vcpus() {
        let process = VmProcess::look(peer_called(std::process::id())).unwrap();
        assert!(process.cpus.is_none() && process.name.is_none());
        assert_eq!(VmProcess::look(peer_called(u32::MAX)), None);
    }

    /// Regression: the process that connected had ended and its PID was reused by this one, so its
    /// disks were attributed to this one's VM.
    #[test]
    fn a_process_that_has_the_number_of_one_that_ended_is_another_one() {
        let now = peer_called(std::process::id());
        let ended = Peer { start: now.start.map(|ticks| ticks - 1), ..now };
        assert_eq!(VmProcess::look(ended), None);
    }

    #[test]
    fn the_statistics_of_a_vcpu_are_no_vcpu() {
        assert!(is_vcpu("anon_inode:kvm-vcpu:3") && !is_vcpu("anon_inode:kvm-vcpu-stats:3"));
    }

    #[test]
    fn vcpus_are_read_from_the_command_line() {
        for (value, cpus) in [
            ("4", Some(4)),
            ("4,maxcpus=8", Some(4)),
            ("maxcpus=8,cpus=2", Some(2)),
            ("sockets=2,cores=3,threads=2", Some(12)),
            ("maxcpus=8", Some(8)),
            ("many", None),
        ] {
            assert_eq!(smp(value), cpus, "{value}");
        }
        assert_eq!(part("guest=web,debug-threads=on", "guest"), Some("web"));
        assert_eq!(part("web,debug-threads=on", "guest"), Some("web"));
        assert_eq!(part("debug-threads=on", "guest"), None);
    }
}
