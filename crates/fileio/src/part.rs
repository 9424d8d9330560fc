//! A new file that gets its name when it is whole.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use flowstone_block::{Error, Result, mutated};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

/// A file that is being filled under the name `TARGET.part`. It is removed on drop, unless it is
/// [finished](Self::finish).
pub struct PartFile {
    path: PathBuf,
    target: PathBuf,
    /// Device and inode of the file that was made; `None` once it is not ours to remove.
    own: Option<(u64, u64)>,
}

impl PartFile {
    /// Makes a file for `target` with `create`, unless there is one. A block device keeps its name.
    pub fn create<T>(target: &Path, create: impl FnOnce(&Path) -> Result<T>) -> Result<(Self, T)> {
        let found = target.symlink_metadata().is_ok();
        let is_device = || target.metadata().is_ok_and(|it| it.file_type().is_block_device());
        let found = mutated("fileio.part.has-its-name-at-once", found, true);
        // `create` refuses what is found and no device.
        let path = if found { target.into() } else { part_of(target) };
        let created = create(&path).map_err(|error| explain(&path, target, error))?;
        let own = if is_device() { None } else { identity(&path) };
        Ok((Self { path, target: target.into(), own }, created))
    }

    /// Returns its path while it is being filled.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the file its name, durably; all its content must be durable. Refuses to replace a file
    /// that has got that name meanwhile.
    #[expect(clippy::disallowed_methods, reason = "a folder, after the image was closed")]
    pub fn finish(mut self) -> Result<()> {
        if self.path == self.target {
            self.own = None;
            return Ok(());
        }
        let name = format!("rename {}", self.path.display());
        if self.own.is_none() || identity(&self.path) != self.own {
            let why = "another file has taken its name";
            return Err(Error::busy(name, why, "see who makes it, and try again"));
        }
        let renamed = renameat_with(CWD, &self.path, CWD, &self.target, RenameFlags::NOREPLACE);
        let renamed = match renamed {
            // A file system that cannot refuse; nothing had the name when the file was begun.
            Err(Errno::INVAL | Errno::NOSYS) => std::fs::rename(&self.path, &self.target),
            renamed => renamed.map_err(Into::into),
        };
        renamed.map_err(|error| Error::host(name, error, "choose another name, and try again"))?;
        self.own = None;
        let folder = self.target.parent().filter(|it| !it.as_os_str().is_empty());
        let synced = match File::open(folder.unwrap_or(Path::new("."))) {
            // A folder that this user may write and not read cannot be synced; the file is whole.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
            folder => folder.and_then(|it| it.sync_all()),
        };
        let name = format!("sync the folder of {}", self.target.display());
        synced.map_err(|error| Error::host(name, error, "check the host's file system"))
    }
}

impl Drop for PartFile {
    fn drop(&mut self) {
        if self.own.is_some() && identity(&self.path) == self.own {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Returns device and inode of a file.
fn identity(path: &Path) -> Option<(u64, u64)> {
    path.symlink_metadata().ok().map(|it| (it.dev(), it.ino()))
}

fn part_of(target: &Path) -> PathBuf {
    let mut name = OsString::from(target);
    name.push(".part");
    name.into()
}

/// Adds what a file of that name means.
fn explain(path: &Path, target: &Path, error: Error) -> Error {
    if path == target || path.symlink_metadata().is_err() {
        return error;
    }
    let why = "it is there: another process is writing it, or one was interrupted";
    Error::invalid(format!("create {}", path.display()), why, "see to that, or remove the file")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_its_name_when_it_is_whole_and_replaces_nothing() {
        let place = tempfile::tempdir().unwrap();
        let target = place.path().join("a.raw");
        let create = |content: &'static str| {
            let write = |path: &Path| crate::create_sparse(path, 0).map(|()| path.to_owned());
            PartFile::create(&target, write).map(|(part, path)| {
                std::fs::write(path, content).unwrap();
                part
            })
        };
        drop(create("given up").unwrap());
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
        let whole = create("whole").unwrap();
        assert!(!target.exists());
        let refused = create("beside").err().unwrap().to_string();
        assert!(refused.contains("a.raw.part: it is there"), "{refused}");
        whole.finish().unwrap();
        let refused = create("again").err().unwrap().to_string();
        assert!(refused.contains("a.raw: the file exists already"), "{refused}");
        std::fs::remove_file(&target).unwrap();
        let late = create("late").unwrap();
        std::fs::write(&target, "another's").unwrap();
        assert!(late.finish().is_err());
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "another's");
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1);
    }

    /// The file was removed, and another process has made its own under that name.
    #[test]
    fn a_file_that_has_taken_the_name_is_neither_renamed_nor_removed() {
        let place = tempfile::tempdir().unwrap();
        let target = place.path().join("a.raw");
        let made = PartFile::create(&target, |path| crate::create_sparse(path, 0)).unwrap();
        let path = made.0.path().to_owned();
        std::fs::rename(&path, place.path().join("elsewhere")).unwrap();
        std::fs::write(&path, "another's").unwrap();
        let refused = made.0.finish().unwrap_err().to_string();
        assert!(refused.contains("another file has taken its name"), "{refused}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "another's");
        assert!(!target.exists());
    }
}
