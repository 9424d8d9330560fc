//! The source's answers about a file: its identity, its attributes, and the stamp by which changes
//! are detected.

use rustix::fs::{FileType, Statx, StatxTimestamp, Timespec};

/// The identity of a file, independent of its name. A file with a reused inode number has another
/// time of birth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The device number of its file system.
    pub device: u64,
    /// Its inode number there.
    pub inode: u64,
    /// Its time of birth, in nanoseconds; 0 if the file system does not report it (NFS).
    pub birth: i64,
}

/// Differs whenever the file has changed, except for two changes within a tick of the server's
/// clock. Includes the change time, since the modification time can be set back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// Size in bytes.
    pub size: u64,
    /// Time of modification.
    pub modified: Timespec,
    /// Time of the last change.
    pub changed: Timespec,
}

/// The attributes of a file.
#[derive(Clone, Copy, Debug)]
pub struct Attributes {
    /// The identity.
    pub identity: Identity,
    /// The file type.
    pub kind: FileType,
    /// Size and times.
    pub stamp: Stamp,
    /// Time of the last access.
    pub accessed: Timespec,
    /// Permissions.
    pub mode: u16,
    /// Number of hard links.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of a device node.
    pub device_node: u32,
    /// Allocated space, in units of 512 bytes.
    pub blocks: u64,
    /// Preferred block size of I/O.
    pub block_size: u32,
}

impl From<Statx> for Attributes {
    fn from(it: Statx) -> Self {
        let has_birth = it.stx_mask & libc::STATX_BTIME != 0;
        let birth =
            it.stx_btime.tv_sec.wrapping_mul(1_000_000_000) + i64::from(it.stx_btime.tv_nsec);
        let device = u64::from(it.stx_dev_major) << 32 | u64::from(it.stx_dev_minor);
        let birth = if has_birth { birth } else { 0 };
        Self {
            identity: Identity { device, inode: it.stx_ino, birth },
            kind: FileType::from_raw_mode(it.stx_mode.into()),
            stamp: Stamp {
                size: it.stx_size,
                modified: time(it.stx_mtime),
                changed: time(it.stx_ctime),
            },
            accessed: time(it.stx_atime),
            mode: it.stx_mode & 0o7777,
            links: it.stx_nlink,
            uid: it.stx_uid,
            gid: it.stx_gid,
            device_node: libc::makedev(it.stx_rdev_major, it.stx_rdev_minor) as u32,
            blocks: it.stx_blocks,
            block_size: it.stx_blksize,
        }
    }
}

fn time(it: StatxTimestamp) -> Timespec {
    Timespec { tv_sec: it.tv_sec, tv_nsec: it.tv_nsec.into() }
}

impl Attributes {
    /// Returns whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.kind == FileType::RegularFile
    }

    /// Returns whether it has the set-user-id or set-group-id bit.
    pub fn is_set_id(&self) -> bool {
        self.mode & 0o6000 != 0
    }
}
