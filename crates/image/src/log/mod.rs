//! The log format: guest writes land one after the other. Format and argument: docs/format.md.
//!
//! From the bottom up: what is in the file (`address`, `ids`, `shape`, `superblock`, `record`,
//! `root`), how records are made (`head`, `record_builder`), what is in memory (`map`, `segments`,
//! `append`, `core`), how an image is read (`load`, `replay`, `lost_tail`), a queue of it
//! (`channel`), the thread behind it (`maintenance`), the image as a whole (`disk`, `inspect`), how
//! one is checked and repaired (`check`), and what makes bad ones on purpose (`corrupter`).

mod address;
mod append;
mod channel;
mod check;
mod command;
mod copy_memory;
mod core;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod corrupter;
mod create;
mod disk;
mod erase_unit;
mod head;
mod ids;
mod inspect;
mod load;
mod lost_tail;
pub(crate) mod maintenance;
mod map;
pub mod policy;
mod rate;
pub(crate) mod record;
mod record_builder;
mod refusal;
mod replay;
mod reserve;
mod resort;
mod root;
mod segments;
mod shape;
mod slots;
mod streams;
mod superblock;
mod window;

pub use address::{Address, MapEntry};
pub use check::{check, repair};
pub use copy_memory::CopyMemory;
pub use create::{LogOptions, create};
pub use disk::LogImage;
pub use erase_unit::{EraseUnit, UnitSource};
pub use inspect::{LogInfo, inspect};
pub use map::BlockMap;
pub use resort::ResortLimit;
pub use streams::Streams;
pub use superblock::SUPERBLOCK_AREA_BYTES;

#[cfg(test)]
mod tests;
