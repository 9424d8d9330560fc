//! The log format: guest writes are appended in order of arrival. Format and argument:
//! docs/format.md.
//!
//! From the bottom up: on-disk structures (`address`, `ids`, `shape`, `superblock`, `record`,
//! `root`), construction of records (`head`, `record_builder`), in-memory state (`map`, `segments`,
//! `append`, `core`), loading (`load`, `replay`, `lost_tail`), a queue (`channel`), the thread
//! behind it (`maintenance`), the image as a whole (`disk`, `inspect`), check and repair (`check`),
//! and deliberate corruption for tests (`corrupter`).

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
