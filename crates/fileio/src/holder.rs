//! Finds the process that has locked a file.
//!
//! A lock belongs to an open file description, which may outlive its process: until the kernel has
//! ended the process's last request, which takes as long as the host's device.

use std::fmt;
use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Statx, StatxFlags, statx};

/// A process.
#[derive(Debug, PartialEq, Eq)]
pub struct Process {
    pid: u32,
    name: String,
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.pid, self.name.escape_default())
    }
}

/// Finds a process that has `file` locked, as far as /proc shows: not those of other users, other
/// containers and other hosts. Processes that merely have it open may be waiting for the same lock.
/// Does not contact a file server.
pub fn holder(file: impl AsFd) -> Option<Process> {
    let known = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let wanted = identity(&statx(&file, c"", known, StatxFlags::INO).ok()?);
    let own = (std::process::id(), file.as_fd().as_raw_fd());
    let pids = fs::read_dir("/proc").ok()?.flatten();
    pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .find(|pid| {
            descriptors(*pid)
                .filter(|number| (*pid, *number) != own)
                .any(|number| leads_to(*pid, number) == Some(wanted) && locks(*pid, number))
        })
        .map(|pid| Process { pid, name: name_of(pid) })
}

fn descriptors(pid: u32) -> impl Iterator<Item = i32> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn leads_to(pid: u32, number: i32) -> Option<(u32, u32, u64)> {
    let path = format!("/proc/{pid}/fd/{number}");
    let found = statx(CWD, Path::new(&path), AtFlags::STATX_DONT_SYNC, StatxFlags::INO);
    found.ok().map(|it| identity(&it))
}

/// Returns whether locks are held through a descriptor.
fn locks(pid: u32, number: i32) -> bool {
    let told = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).unwrap_or_default();
    told.lines().any(|line| line.starts_with("lock:"))
}

const fn identity(it: &Statx) -> (u32, u32, u64) {
    (it.stx_dev_major, it.stx_dev_minor, it.stx_ino)
}

fn name_of(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().to_owned()
}
