//! Conflicts: a dirty file that has been changed at the source meanwhile.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::{SystemTime, UNIX_EPOCH};

use flowstone_memory::mutated;
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid, fchown, openat, unlinkat};
use rustix::io::{Errno, Result};

use crate::callers::Caller;
use crate::errno;
use crate::files::Files;
use crate::source;
use crate::write_back::Dirty;

/// Names tried for a file that is kept beside another one.
const NAMES_MAX: u32 = 100;
/// Longest file name in bytes.
const NAME_MAX: usize = 255;

impl Files {
    /// Writes the bytes of a dirty file to a new file beside the source's, which others have
    /// changed.
    pub(super) fn keep_beside(&self, dirty: &Dirty, mode: u16) -> Result<()> {
        let (folder, name) = &dirty.place;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        // Never with the set-user-id bit: the bytes are the writer's, and the file may be the
        // daemon's.
        let mode = Mode::from_raw_mode(u32::from(mode & 0o777));
        let alone = OFlags::EXCL;
        let alone = mutated("guest.conflict.writes-over-another", alone, OFlags::empty());
        let flags = OFlags::WRONLY | OFlags::CREATE | alone | OFlags::CLOEXEC;
        for number in 0..NAMES_MAX {
            let after = if number > 0 { format!("-{number}") } else { String::new() };
            let after = format!(".conflict-{now}{after}");
            let stem = &name.as_bytes()[..name.len().min(NAME_MAX - after.len())];
            let beside = OsString::from_vec([stem, after.as_bytes()].concat());
            let made = {
                let _acting = dirty.caller.act();
                openat(folder, &beside, flags, mode)
            };
            // A user may be allowed to write a file and not to create one: then the daemon creates
            // it.
            let made = match made {
                Err(Errno::ACCESS | Errno::PERM) => make_for(&dirty.caller, folder, &beside, flags),
                made => made,
            };
            let file = match made {
                Err(Errno::EXIST) => continue,
                made => File::from(made?),
            };
            if let Err(error) = self.copy_whole(&dirty.copy.file, file) {
                // A partial file is worse than none; the bytes are still here.
                let removes = mutated("guest.conflict.leaves-a-half", true, false);
                if removes {
                    let _ = unlinkat(folder, &beside, AtFlags::empty());
                }
                return Err(error);
            }
            self.counters.conflicts.add(1);
            let path = self.nodes.path(&dirty.node).unwrap_or_else(|| name.as_bytes().into());
            eprintln!(
                "{}: changed at the source and here; what was written here is in {}",
                String::from_utf8_lossy(&path),
                beside.display()
            );
            return Ok(());
        }
        Err(Errno::EXIST)
    }

    fn copy_whole(&self, copy: &File, to: File) -> Result<()> {
        self.copy_to_source(copy, &to, (0, copy.metadata().map_err(errno)?.len()))?;
        source::close(to)
    }
}

/// Creates a file owned by another user, and readable by no third one.
fn make_for(user: &Caller, folder: &OwnedFd, name: &OsStr, flags: OFlags) -> Result<OwnedFd> {
    let made = openat(folder, name, flags, Mode::RUSR | Mode::WUSR)?;
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    fchown(&made, Some(uid), Some(gid)).inspect_err(|_| {
        let _ = unlinkat(folder, name, AtFlags::empty());
    })?;
    Ok(made)
}
