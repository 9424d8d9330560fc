//! Limits of disks and groups: the layer, and what it shares with other threads.

mod bucket;
mod budget;
mod channel;
mod disk;
mod gate;
mod group;
mod layer;
mod line;

pub use disk::DiskLimits;
pub use group::Group;
pub use layer::Limited;
