//! Limits of disks and groups: what a queue asks before it takes requests, and what it shares with
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
