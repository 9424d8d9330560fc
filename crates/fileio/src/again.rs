//! Opens a second file description of a file, for its syncs (see `Descriptors`).
//!
//! By its descriptor in `/proc`, which cannot name another file. Without `/proc` by its path, which
//! may lead to another file by now, so the identity is compared. A file that cannot be opened a
//! second time is not served: a durable write could then consume a failure that a sync is to
//! report.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use flowstone_block::{Error, Result, mutated};

/// Folder of the process's own descriptors.
pub(crate) const DESCRIPTORS: &str = "/proc/self/fd";

/// Opens another description of `file`, which was opened at `path`.
pub(crate) fn open_again(file: &File, path: &Path, descriptors: &Path) -> Result<File> {
    let fits =
        |again: &File| mutated("fileio.again.takes-what-has-its-name", is_same(file, again), true);
    File::open(descriptors.join(file.as_raw_fd().to_string()))
        .ok()
        .or_else(|| File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok())
        .filter(fits)
        .ok_or_else(|| {
            Error::unsupported(
                path.display().to_string(),
                "it cannot be opened a second time, for its syncs: neither by /proc nor by its name",
                "mount /proc, and leave the file its name while it is opened",
            )
        })
}

fn is_same(one: &File, other: &File) -> bool {
    let number = |file: &File| file.metadata().map(|it| (it.dev(), it.ino())).ok();
    number(one).is_some() && number(one) == number(other)
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, SeekFrom};

    use super::*;

    /// Two descriptors of one description share one position.
    fn has_its_own_position(mut file: &File, mut again: &File) -> bool {
        file.seek(SeekFrom::Start(1)).unwrap();
        again.seek(SeekFrom::Start(2)).unwrap();
        file.stream_position().unwrap() == 1
    }

    /// There was one description then: a write with `RWF_DSYNC` consumed a write-back error that
    /// the next sync should have reported.
    #[test]
    fn without_proc_a_file_has_a_second_description_by_its_name_or_is_not_served() {
        let folder = tempfile::tempdir().unwrap();
        let (path, nowhere) = (folder.path().join("disk"), folder.path().join("no-proc"));
        std::fs::write(&path, [0; 512]).unwrap();
        let file = File::open(&path).unwrap();
        for descriptors in [Path::new(DESCRIPTORS), &nowhere] {
            let again = open_again(&file, &path, descriptors).unwrap();
            assert!(is_same(&file, &again) && has_its_own_position(&file, &again));
        }
        // The path now leads to another file; through /proc the right one is found.
        std::fs::rename(&path, folder.path().join("old")).unwrap();
        std::fs::write(&path, [0; 512]).unwrap();
        let again = open_again(&file, &path, Path::new(DESCRIPTORS)).unwrap();
        assert!(is_same(&file, &again));
        let refused = open_again(&file, &path, &nowhere).unwrap_err().to_string();
        assert!(refused.contains("second time") && !refused.contains('\n'), "{refused}");
        std::fs::remove_file(&path).unwrap();
        assert!(open_again(&file, &path, &nowhere).is_err());
    }
}
