//! The environments of writers: a file system and a scheduler of the host, set up and removed here.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use flowstone_experiment::command::succeed;

/// An environment, by name.
#[derive(Clone, Copy, Debug)]
pub struct Environment {
    /// Name for `--only` and for the table.
    pub name: &'static str,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// The file system of the directory, which must be of this type.
    Here { file_system: &'static str },
    /// A new file system, in a file behind a loop device.
    Loop { mkfs: &'static [&'static str] },
}

const fn here(name: &'static str, file_system: &'static str) -> Environment {
    Environment { name, kind: Kind::Here { file_system } }
}

const fn on_loop(name: &'static str, mkfs: &'static [&'static str]) -> Environment {
    Environment { name, kind: Kind::Loop { mkfs } }
}

const EXT4: &[&str] = &["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0"];

/// All environments.
pub const ENVIRONMENTS: [Environment; 6] = [
    here("ext4-none", "ext4"),
    on_loop("xfs", &["mkfs.xfs", "-q", "-f"]),
    on_loop("btrfs", &["mkfs.btrfs", "-q", "-f"]),
    on_loop("loop-mq-deadline", EXT4),
    on_loop("loop-kyber", EXT4),
    on_loop("loop-bfq", EXT4),
];

impl Environment {
    /// Returns whether it has room for small jobs only.
    pub const fn is_small(&self) -> bool {
        matches!(self.kind, Kind::Loop { .. })
    }

    /// Returns whether images are opened through the page cache: btrfs does not say what direct I/O
    /// demands.
    pub fn is_buffered(&self) -> bool {
        self.name == "btrfs"
    }

    /// Returns the scheduler of its device.
    fn scheduler(&self) -> &'static str {
        self.name.strip_prefix("loop-").unwrap_or("none")
    }

    /// Sets it up below `dir`, with room for a raw and a log image of `image_bytes`. Remains of an
    /// interrupted run are removed first.
    pub fn set_up(&self, dir: &Path, image_bytes: u64) -> Result<Ground> {
        let mut ground = match self.kind {
            Kind::Here { file_system } => {
                let found = mounted(dir)?;
                ensure!(
                    found.file_system == file_system,
                    "{} is on {}, not on {file_system}",
                    dir.display(),
                    found.file_system
                );
                Ground { dir: dir.to_owned(), scheduler: None, own: None }
            }
            Kind::Loop { mkfs } => loop_mount(dir, self.name, mkfs, image_bytes * 4)?,
        };
        if let Err(error) = ground.choose(self.scheduler()) {
            // The reason of the failure is more useful than an error of the removal.
            let _ = ground.take_down();
            return Err(error);
        }
        Ok(ground)
    }
}

/// An environment that is set up.
pub struct Ground {
    dir: PathBuf,
    /// The sysfs file of the scheduler, and its former content.
    scheduler: Option<(PathBuf, String)>,
    own: Option<OwnFileSystem>,
}

struct OwnFileSystem {
    device: String,
    mount_point: PathBuf,
    file: PathBuf,
}

impl Ground {
    /// Returns the folder of its images.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Sets the scheduler of its device.
    fn choose(&mut self, scheduler: &str) -> Result<()> {
        let number = fs::metadata(&self.dir)?.dev();
        let id = match &self.own {
            None => format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number)),
            // The device number of btrfs is not that of a block device.
            Some(own) => {
                let name = own.device.trim_start_matches("/dev/");
                fs::read_to_string(format!("/sys/block/{name}/dev"))?.trim().to_owned()
            }
        };
        let file = PathBuf::from(format!("/sys/dev/block/{id}/queue/scheduler"));
        let before = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let before = chosen(&before).context("no scheduler is chosen")?.to_owned();
        fs::write(&file, scheduler).with_context(|| format!("choose the scheduler {scheduler}"))?;
        self.scheduler = Some((file, before));
        Ok(())
    }

    /// Restores the former state.
    pub fn take_down(self) -> Result<()> {
        if let Some((file, before)) = &self.scheduler {
            fs::write(file, before).with_context(|| format!("choose {before} again"))?;
        }
        self.own.map_or(Ok(()), |own| own.remove())
    }
}

impl OwnFileSystem {
    fn remove(&self) -> Result<()> {
        succeed(Command::new("umount").arg(&self.mount_point))?;
        succeed(Command::new("losetup").args(["-d", &self.device]))?;
        fs::remove_file(&self.file)?;
        Ok(fs::remove_dir(&self.mount_point)?)
    }
}

/// Makes a file system in a file, and mounts it.
fn loop_mount(dir: &Path, name: &str, mkfs: &[&str], bytes: u64) -> Result<Ground> {
    let file = dir.join(format!("writers-{name}.img"));
    let mount_point = dir.join(format!("writers-{name}"));
    remove_remains(&file, &mount_point)?;
    fs::create_dir_all(&mount_point)?;
    let made = fs::File::create(&file).and_then(|it| it.set_len(bytes));
    made.with_context(|| format!("make {}", file.display()))?;
    let mut losetup = Command::new("losetup");
    losetup.args(["--direct-io=on", "--find", "--show"]).arg(&file);
    let device = String::from_utf8(succeed(&mut losetup)?)?.trim().to_owned();
    let mounted = succeed(Command::new(mkfs[0]).args(&mkfs[1..]).arg(&device))
        .and_then(|_| succeed(Command::new("mount").arg(&device).arg(&mount_point)));
    if let Err(error) = mounted {
        succeed(Command::new("losetup").args(["-d", &device]))?;
        fs::remove_file(&file)?;
        return Err(error);
    }
    let own = OwnFileSystem { device, mount_point: mount_point.clone(), file };
    Ok(Ground { dir: mount_point, scheduler: None, own: Some(own) })
}

/// Removes the remains of an interrupted run.
fn remove_remains(file: &Path, mount_point: &Path) -> Result<()> {
    if !file.exists() {
        return Ok(());
    }
    if mount_point.exists() && mounted(mount_point)?.mount_point == mount_point {
        succeed(Command::new("umount").arg(mount_point))?;
    }
    let output =
        Command::new("losetup").args(["--noheadings", "-O", "NAME", "-j"]).arg(file).output()?;
    for device in String::from_utf8_lossy(&output.stdout).lines() {
        succeed(Command::new("losetup").args(["-d", device.trim()]))?;
    }
    Ok(fs::remove_file(file)?)
}

/// An entry of mountinfo.
#[derive(Debug, PartialEq)]
struct Mount {
    mount_point: PathBuf,
    file_system: String,
}

fn mounted(dir: &Path) -> Result<Mount> {
    let text = fs::read_to_string("/proc/self/mountinfo")?;
    let mount = mount_of(&text, &dir.canonicalize()?);
    mount.with_context(|| format!("{} is on no known file system", dir.display()))
}

/// Returns the mount with the longest mount point above the path; of several, the last.
fn mount_of(mountinfo: &str, path: &Path) -> Option<Mount> {
    let mounts = mountinfo.lines().filter_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mount_point = PathBuf::from(left.split(' ').nth(4)?);
        let file_system = right.split(' ').next()?.to_owned();
        Some(Mount { mount_point, file_system })
    });
    mounts
        .filter(|mount| path.starts_with(&mount.mount_point))
        .max_by_key(|mount| mount.mount_point.as_os_str().len())
}

/// Returns the scheduler in brackets.
fn chosen(schedulers: &str) -> Option<&str> {
    let (_, rest) = schedulers.split_once('[')?;
    rest.split_once(']').map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTINFO: &str = "\
        21 1 254:0 / / rw,relatime - ext4 /dev/root rw\n\
        22 21 0:5 / /dev rw shared:1 - devtmpfs devtmpfs rw\n\
        23 21 7:0 / /bench/writers-xfs rw,relatime - xfs /dev/loop0 rw\n";

    #[test]
    fn the_innermost_mount_is_that_of_a_path() {
        let at = |path: &str| mount_of(MOUNTINFO, Path::new(path)).unwrap().file_system;
        assert_eq!(at("/bench"), "ext4");
        assert_eq!(at("/bench/writers-xfs/a.raw"), "xfs");
        assert_eq!(at("/bench/writers-xfs2"), "ext4");
        assert_eq!(at("/dev/shm"), "devtmpfs");
    }

    #[test]
    fn the_chosen_scheduler_is_in_brackets() {
        assert_eq!(chosen("none [mq-deadline] kyber bfq\n"), Some("mq-deadline"));
        assert_eq!(chosen("[none]"), Some("none"));
        assert_eq!(chosen("none"), None);
    }

    #[test]
    fn loop_devices_have_the_scheduler_of_their_name() {
        let of = |name: &str| {
            ENVIRONMENTS.iter().find(|it| it.name == name).map(|it| (it.scheduler(), it.is_small()))
        };
        assert_eq!(of("ext4-none"), Some(("none", false)));
        assert_eq!(of("btrfs"), Some(("none", true)));
        assert_eq!(of("loop-kyber"), Some(("kyber", true)));
    }

    #[test]
    fn a_file_system_that_is_another_one_is_refused() {
        let proc = here("somewhere", "ext4").set_up(Path::new("/proc"), 1 << 20);
        let refused = proc.err().map(|error| error.to_string());
        assert_eq!(refused.as_deref(), Some("/proc is on proc, not on ext4"));
    }
}
