//! Classifies a guest's requests: a file system's journal, its metadata, or data.
//!
//! A wrong class costs speed, never data: the class decides nothing else. Rules in order of trust
//! ([`judge`]): the on-disk structures ([`recognise`]), the guest's hint on the request, the blocks
//! listed by the file system's journal (`listed`), the headers of the written blocks, the pattern
//! of the guest's writes (`pattern`). [`Classify`] is the layer that applies them; all else here
//! does no I/O of its own and reads a disk through [`ReadBytes`].

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

pub use counters::ClassCount;
pub use layer::{Classify, ClassifyArgs, DiskClasses};
pub use layout::{Found, Layout, Place};
pub use recognise::recognise;
pub use report::{ClassesReport, LayoutReport};
pub use verdict::{Asked, Rule, Verdict, judge};
pub use volume::ReadBytes;
pub use watcher::Pace;
