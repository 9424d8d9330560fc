//! Tells what a request of a guest carries: a file system's journal, its metadata, or data.
//!
//! A wrong class costs speed, never data: what a guest wrote decides nothing else. Rules in order
//! of trust ([`judge`]): the structures on the disk ([`recognise`]), the guest's hint on the
//! request, what the file system's journal has listed (`listed`), or the header of what is written
//! says, the way in which the guest writes (`pattern`). [`Classify`] is the layer that asks them;
//! all else here is pure and reads a disk through [`ReadBytes`].

mod btrfs;
mod counters;
mod ext4;
mod fields;
mod layer;
mod layout;
mod listed;
mod lvm;
mod partitions;
mod pattern;
mod recognise;
mod report;
mod verdict;
mod volume;
mod watcher;
mod xfs;

pub use counters::{ClassCount, Counters};
pub use layer::{Classify, ClassifyArgs, DiskClasses};
pub use layout::{Found, Layout, Place};
pub use recognise::recognise;
pub use report::{ClassesReport, LayoutReport};
pub use verdict::{Asked, Rule, Verdict, judge};
pub use volume::ReadBytes;
pub use watcher::Pace;
