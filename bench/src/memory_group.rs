//! A memory cgroup with a limit, version 1 or 2.

use std::path::PathBuf;

use anyhow::{Context, Result};

/// Folders of the controllers, and names of their limits.
const CONTROLLERS: [(&str, &str); 2] =
    [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];

/// The cgroup, removed when it is dropped and its processes have ended.
pub struct MemoryGroup(PathBuf);

impl MemoryGroup {
    /// Makes the cgroup; `None`, with a message, if that is not possible.
    pub fn new(limit: u64) -> Option<Self> {
        for (root, file) in CONTROLLERS {
            let group = PathBuf::from(root).join(format!("flowstone-bench-{}", std::process::id()));
            if std::fs::create_dir(&group).is_err() {
                continue;
            }
            let group = Self(group);
            if std::fs::write(group.0.join(file), limit.to_string()).is_ok() {
                return Some(group);
            }
        }
        eprintln!("left out: memory cgroups cannot be made here");
        None
    }

    /// Moves a process into it. Memory that it already has stays charged to its old cgroup.
    pub fn add(&self, pid: u32) -> Result<()> {
        let procs = self.0.join("cgroup.procs");
        std::fs::write(&procs, pid.to_string())
            .with_context(|| format!("write {}", procs.display()))
    }

    /// Returns a command that runs its arguments in the cgroup, from their first page on.
    pub fn launcher(&self) -> Vec<String> {
        let procs = self.0.join("cgroup.procs");
        let script = format!("echo $$ >{} && exec \"$0\" \"$@\"", procs.display());
        vec!["sh".into(), "-c".into(), script]
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}
