//! Quality of service: limits of disks, and shares of contended devices.
//!
//! [`DiskLimits`] limit the requests and bytes per second of a disk and of its group: queues ask an
//! [`Admission`] before they take requests. [`DiskShare`] sits in front of a disk's host files: at
//! a device for which disks contend, each gets its part. The order of requests of several queues
//! and disks is decided by one pure structure, [`FairQueue`]. Details: docs/qos.md.

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
