//! The origin of a result, without which a figure is meaningless.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

/// The machine, the code, and how busy it was.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Host {
    /// UTC date and time of the start.
    pub date: String,
    /// See [`commit`].
    pub commit: String,
    /// Kernel release.
    pub kernel: String,
    /// CPU model.
    pub cpu: String,
    /// Number of CPUs.
    pub cpus: usize,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// File system and device of the disk image.
    pub device: String,
    /// One-minute load average at the start; a value far above zero invalidates the results.
    pub load_average: f64,
    /// Versions of all measured programs.
    pub versions: Vec<(String, String)>,
}

impl Host {
    /// Reads the host's properties.
    pub fn inspect(versions: Vec<(String, String)>, disk_dir: &Path) -> Self {
        let cpuinfo = read("/proc/cpuinfo");
        Host {
            date: said("date", &["-u", "+%Y-%m-%d %H:%M UTC"]),
            commit: commit(),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            cpu: after_colon(&cpuinfo, "model name").unwrap_or_else(|| "unknown".to_owned()),
            cpus: std::thread::available_parallelism().map_or(0, Into::into),
            memory_mib: first_number(&read("/proc/meminfo"), "MemTotal").unwrap_or(0) / 1024,
            device: device(disk_dir),
            load_average: read("/proc/loadavg")
                .split(' ')
                .next()
                .and_then(|word| word.parse().ok())
                .unwrap_or_default(),
            versions,
        }
    }

    /// Describes place and time, in a line of a report.
    pub fn sentence(&self) -> String {
        format!(
            "Measured {} at commit `{}`: {}, {} CPUs, {} MiB, kernel {}; load average at the start {:.2}.",
            self.date,
            self.commit,
            self.cpu,
            self.cpus,
            self.memory_mib,
            self.kernel,
            self.load_average
        )
    }
}

const DIRTY: &str = "-dirty";

/// Returns the commit of this repository, with `-dirty` if anything but text and results differs
/// from it; or why it is unknown.
pub fn commit() -> String {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let hash = said("git", &["-C", root, "rev-parse", "--short=12", "HEAD"]);
    let status = ["-C", root, "status", "--porcelain", "--untracked-files=no", "--", root];
    let changes = said("git", &[&status[..], &[":!/docs", ":!/*.md"]].concat());
    if changes.is_empty() { hash } else { format!("{hash}{DIRTY}") }
}

/// Refuses to measure into a file of `docs` what no commit has.
pub fn require_commit(path: &Path) -> Result<()> {
    let is_kept = path.components().any(|part| part.as_os_str() == "docs");
    let commit = commit();
    ensure!(
        !is_kept || !commit.ends_with(DIRTY),
        "{} is for figures of a commit, this is {commit}: commit first",
        path.display()
    );
    Ok(())
}

/// Returns file system type and block device of a directory, or a device itself, with its sysfs
/// properties.
fn device(dir: &Path) -> String {
    let Ok(meta) = fs::metadata(dir) else {
        return "unknown".to_owned();
    };
    let is_device = meta.file_type().is_block_device();
    let number = if is_device { meta.rdev() } else { meta.dev() };
    let id = format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
    let mounts = read("/proc/self/mountinfo");
    let mount = mounts.lines().find(|line| line.split(' ').nth(2) == Some(&id));
    let kind = mount.and_then(|line| line.split(" - ").nth(1)).unwrap_or("unknown");
    let mut words = kind.split(' ');
    let (kind, name) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let sys = |file: &str| read(&format!("/sys/dev/block/{id}/{file}")).trim().to_owned();
    let (cache, scheduler) = (sys("queue/write_cache"), sys("queue/scheduler"));
    if is_device {
        return format!("a block device ({cache}, scheduler {scheduler})");
    }
    if scheduler.is_empty() {
        return kind.to_owned();
    }
    format!("{kind} on {name} ({cache}, scheduler {scheduler})")
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Returns the output of a program, or that it failed.
fn said(program: &str, args: &[&str]) -> String {
    match Command::new(program).args(args).output() {
        Ok(answer) if answer.status.success() => {
            String::from_utf8_lossy(&answer.stdout).trim().to_owned()
        }
        _ => format!("unknown ({program} failed)"),
    }
}

fn after_colon(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_once(':').map(|(_, value)| value.trim().to_owned())
}

fn first_number(text: &str, name: &str) -> Option<u64> {
    after_colon(text, name)?.split(' ').next()?.parse().ok()
}
