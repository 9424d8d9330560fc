//! What disks take of what they share.
//!
//! [`DiskLimits`] hold a disk, and the group that it is in, to so many requests and bytes per
//! second: its queues ask an [`Admission`] before they take requests. [`DiskShare`] stands before a
//! disk's host files: at a device for which disks contend, each gets its part. Which of several
//! queues and disks goes first is one pure structure, [`FairQueue`]. How it works: docs/qos.md.

mod args;
mod device;
mod fair_queue;
mod limit;
mod limits;
mod nanoseconds;
mod report;
mod weight;

pub use args::{GroupArgs, GroupLimitArgs, ShareArgs};
pub use device::{DeviceVm, Devices, DiskShare, SharedFile};
pub use fair_queue::{DiskKey, FairQueue, Kind, QueueKey, Rank, VmKey};
pub use limit::Limit;
pub use limits::{Admission, DiskLimits, Group};
pub use report::{GroupReport, QosReport};
pub use weight::Weight;
