//! Layouts of real disks: what the classifier reads is compared with what the file systems' own tools say
//! of the same image.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod disk;
mod ext4;
mod hostile;
mod lvm;
mod partitions;
mod watching;
mod xfs;
