//! The log format: guest writes land one after the other. Format and argument: docs/format.md.
//!
//! From the bottom up: what is in the file (`address`, `shape`, `superblock`, `record`, `root`),
//! what is in memory (`map`, `segments`, `tail`, `core`), how an image is read (`load`, `replay`,
//! `lost`), a queue of it (`channel`), the thread behind it (`keeper`), the image as a whole (`disk`,
//! `inspect`), how one is checked and repaired (`check`), and
//! what makes bad ones on purpose (`doctor`).

mod address;
mod channel;
mod check;
mod core;
mod disk;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod doctor;
mod inbox;
mod inspect;
pub(crate) mod keeper;
mod load;
mod lost;
mod map;
pub mod policy;
pub(crate) mod record;
mod replay;
mod reserve;
mod root;
mod segments;
mod shape;
mod superblock;
mod sync;
mod tail;
mod window;

pub use address::{Address, Word};
pub use check::{check, repair};
pub use disk::{LogImage, LogOptions, create};
pub use inspect::{LogInfo, LogState, inspect};
pub use map::BlockMap;
pub use superblock::SUPERBLOCK_AREA_BYTES;

#[cfg(test)]
mod tests;
