//! What disks take of what they share.
//!
//! [`Limited`] is the layer that holds a disk, and the group that it is in, to so many requests and bytes
//! per second. Which of several queues and disks goes first is one pure structure, [`FairQueue`]. How it
//! works: docs/qos.md.

mod fair_queue;
mod limit;
mod limits;
mod weight;

pub use fair_queue::{DiskKey, FairQueue, QueueKey};
pub use limit::Limit;
pub use limits::{DiskLimits, Group, Limited};
pub use weight::Weight;
