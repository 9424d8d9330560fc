//! Storage of copies: unnamed files in a private tmpfs, which are lost with the daemon, or files in
//! a folder, which are not.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, Mode, OFlags, memfd_create, openat};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount,
    fsopen,
};
use rustix::process::{Resource, getrlimit};

use crate::shelf::Shelf;

/// Bytes that a copy takes besides its pages.
const OVERHEAD: u64 = 2 << 10;
const PAGE: u64 = 4 << 10;
/// Divisor of the process's descriptors: copies have this part of them, or twice if dirty, since a
/// copy keeps a descriptor and a dirty one keeps two; the rest is for files opened by users.
const DESCRIPTORS_OF: u64 = 3;

/// The storage of copies.
pub enum Store {
    /// A tmpfs.
    Memory(OwnedFd),
    /// A folder on a disk.
    Shelf(Arc<Shelf>),
    /// Memory of the process, if a tmpfs cannot be mounted.
    Anonymous,
}

impl Store {
    /// Makes a tmpfs that is mounted nowhere, with huge pages: with small pages large reads have a
    /// third of the throughput.
    pub fn memory() -> Self {
        private_tmpfs().map_or(Self::Anonymous, Self::Memory)
    }

    /// Returns the folder, if copies are in one.
    pub fn shelf(&self) -> Option<&Arc<Shelf>> {
        if let Self::Shelf(shelf) = self { Some(shelf) } else { None }
    }

    /// Creates an empty, unnamed file.
    pub fn new_file(&self) -> io::Result<File> {
        let file = match self {
            Self::Shelf(shelf) => return shelf.new_file(),
            Self::Memory(folder) => {
                let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
                openat(folder, ".", flags, Mode::RUSR | Mode::WUSR)?
            }
            Self::Anonymous => memfd_create("flowstone-copy", MemfdFlags::CLOEXEC)?,
        };
        Ok(File::from(file))
    }
}

fn private_tmpfs() -> rustix::io::Result<OwnedFd> {
    let make = |huge: bool| {
        let options = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        // The policy limits the copies; the kernel's default limit, half of all memory, would
        // interfere.
        fsconfig_set_string(&options, "size", "0")?;
        fsconfig_set_string(&options, "mode", "0700")?;
        if huge {
            fsconfig_set_string(&options, "huge", "within_size")?;
        }
        fsconfig_create(&options)?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
        let mounted = fsmount(&options, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
        openat(mounted, ".", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
    };
    // A kernel without huge pages refuses the option.
    make(true).or_else(|_| make(false))
}

/// Returns the bytes that a copy of a file takes.
pub fn space_of(bytes: u64) -> u64 {
    bytes.next_multiple_of(PAGE) + OVERHEAD
}

/// Returns the most copies that there may be.
pub fn files_max() -> usize {
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(descriptors / DESCRIPTORS_OF).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn a_copy_in_memory_has_no_name() {
        let file = Store::memory().new_file().unwrap();
        assert_eq!(file.metadata().unwrap().nlink(), 0);
    }

    #[test]
    fn a_copy_takes_whole_pages() {
        assert_eq!(space_of(0), 2 << 10);
        assert_eq!(space_of(1), 6 << 10);
        assert_eq!(space_of(8192), 10 << 10);
    }
}
