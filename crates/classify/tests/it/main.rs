//! Layouts of real disks, compared with the output of the file systems' own tools for the same
//! image.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod bounds;
mod btrfs;
mod disk;
mod ext4;
mod forged;
mod hostile;
mod listed;
mod lvm;
mod partitions;
mod rare;
mod readings;
mod remains;
mod slow;
mod tables;
mod volumes;
mod xfs;
