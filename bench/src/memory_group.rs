//! A memory cgroup with a limit, version 1 or 2.

use std::path::PathBuf;

use anyhow::{Context, Result};

/// Where the controllers are, and what their limits are called.
const CONTROLLERS: [(&str, &str); 2] =
    [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];

/// Removed when it is dropped, and its processes have ended.
pub struct MemoryGroup(PathBuf);

impl MemoryGroup {
    /// Nothing where that is not to be; says so.
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

    /// Puts a process into it. What it has had before stays counted where it was.
    pub fn add(&self, pid: u32) -> Result<()> {
        let procs = self.0.join("cgroup.procs");
        std::fs::write(&procs, pid.to_string())
            .with_context(|| format!("write {}", procs.display()))
    }

    /// A command that runs the one it is given in here, from its first page on.
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
