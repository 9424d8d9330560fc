//! Real Linux guests on flowstone disks.
//!
//! `framework` starts the daemon and boots stock Debian kernels under QEMU against it; the cases in
//! `tests/it` and the demo (`make demo`) are scripts on top of it. Nothing here links the daemon:
//! it is tested as the program that users run, through its command line, its sockets and its image
//! files.

pub mod framework;

/// The sector that `file-load` reads when a phase begins. Nothing else reads it alone: it is
/// between the first superblock of ext4 and the end of its block.
pub const MARK_SECTOR: u64 = 5;
