//! The log format: guest writes land one after the other. Format and argument: docs/format.md.
//!
//! From the bottom up: what is in the file (`address`, `shape`, `superblock`, `record`, `root`),
//! what is in memory (`map`, `segments`, `tail`, `core`), how an image is read (`load`, `replay`),
//! a queue of it (`channel`), the thread behind it (`keeper`), and the image as a whole (`disk`).

mod address;
mod channel;
mod core;
mod disk;
mod inbox;
mod keeper;
mod load;
mod map;
mod policy;
mod record;
mod replay;
mod root;
mod segments;
mod shape;
mod superblock;
mod sync;
mod tail;
mod waker;
mod window;

pub use disk::{LogImage, LogOptions, create};
pub use superblock::SUPERBLOCK_AREA_BYTES;
