//! The mount point: finding and removing a mount.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

/// Prefix of the source of such a mount in the list of mounts.
pub const PREFIX: &str = "flowstone:";

/// Returns the device number (`MAJOR:MINOR`) of the topmost mount at a path, if it is of this type.
/// Does not access the mount, which may be dead.
pub fn device_at(at: &Path) -> Option<String> {
    find(&std::fs::read_to_string("/proc/self/mountinfo").ok()?, at)
}

fn find(mounts: &str, at: &Path) -> Option<String> {
    // The last one is on top.
    let line = mounts
        .lines()
        .rev()
        .find(|line| line.split(' ').nth(4).is_some_and(|it| Path::new(&unescape(it)) == at))?;
    let (fields, rest) = line.split_once(" - ")?;
    let (kind, rest) = rest.split_once(' ')?;
    let is_ours = (kind == "fuse" || kind.starts_with("fuse.")) && rest.starts_with(PREFIX);
    let device = fields.split(' ').nth(2)?.to_owned();
    is_ours.then_some(device)
}

/// Decodes the octal escapes of blanks and the like in the list.
fn unescape(text: &str) -> String {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    escapes.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

/// Prepares a mount point: detaches the dead mount of a killed daemon. Returns the path without
/// symbolic links. Mounting over a live mount is an error.
pub fn prepare(at: &Path) -> io::Result<PathBuf> {
    let absolute = std::path::absolute(at)?;
    let parent = absolute.parent().unwrap_or(Path::new("/")).canonicalize()?;
    // The last component may lead into a dead mount, in which nothing can be looked up.
    let at = absolute.file_name().map_or(parent.clone(), |name| parent.join(name));
    let at = std::fs::read_link(&at).map_or(Ok(at), |to| parent.join(to).canonicalize())?;
    while device_at(&at).is_some() {
        if !is_dead(&at) {
            return Err(io::Error::other("a cache is mounted there already"));
        }
        detach(&at)?;
    }
    Ok(at)
}

/// Returns whether the daemon of a mount is gone. Forces a request, since the kernel may answer
/// from cached attributes.
fn is_dead(at: &Path) -> bool {
    let asked = statx(CWD, at, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS);
    asked.is_err_and(|error| error == Errno::NOTCONN)
}

/// Detaches a mount even if it is in use.
pub fn detach(at: &Path) -> io::Result<()> {
    Ok(unmount(at, UnmountFlags::DETACH)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
22 1 8:1 / / rw - ext4 /dev/sda1 rw
40 22 0:50 / /mnt/a\\040b rw,nosuid - fuse flowstone:/srv/shared rw,user_id=0
41 22 0:51 / /mnt/other rw - fuse.sshfs host: rw
42 22 0:52 / /mnt/twice rw - fuse flowstone:/srv/shared rw
43 42 0:53 / /mnt/twice rw - tmpfs none rw
";

    #[test]
    fn the_topmost_mount_at_a_path_is_found() {
        let device = |at: &str| find(MOUNTS, Path::new(at));
        assert_eq!(device("/mnt/a b").as_deref(), Some("0:50"));
        assert_eq!(device("/mnt/other"), None, "of another kind");
        assert_eq!(device("/mnt/twice"), None, "another one lies over it");
        assert_eq!(device("/mnt"), None);
    }
}
