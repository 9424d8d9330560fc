//! Limits of disks and groups: the admission of a queue's requests, and the state it shares with
//! other threads.

mod admission;
mod bucket;
mod budget;
mod disk;
mod gate;
mod group;
mod line;

pub use admission::Admission;
pub use disk::DiskLimits;
pub use group::Group;
