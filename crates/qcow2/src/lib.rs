//! The qcow2 format, as QEMU specifies it. Supported features, and why a power cut at any time
//! leaves nothing worse than leaked clusters: docs/qcow2.md.
//!
//! From the bottom up: on-disk structures (`shape`, `entry`, `header`, `refcounts`, `compressed`),
//! in-memory state (`map`, `space`, `meta`), recovery after a killed daemon (`boot`, `mark`,
//! `redo`, `replay`), relocation (`relocation_plan`), shared state (`epochs`, `commits`, `core`), a
//! queue (`channel`), the threads behind it (`slow_path`, `maintenance`), or their turns
//! (`by_hand`), and the image as a whole (`survey`, `looks`, `create`, `open`, `disk`,
//! `inspect`, `check`).

mod boot;
mod by_hand;
mod channel;
mod check;
mod commits;
mod compressed;
mod core;
mod create;
mod disk;
mod entry;
mod epochs;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
mod header;
mod header_io;
mod inspect;
mod looks;
mod maintenance;
mod map;
mod mark;
mod meta;
mod open;
mod redo;
mod refcounts;
mod relocation_plan;
mod replay;
mod shape;
mod slow_path;
mod space;
mod survey;

#[cfg(test)]
mod tests;

pub use check::check;
pub use create::create;
pub use create::{Backing, Qcow2Options};
pub use disk::Qcow2Image;
pub use header::BackingName;
pub use header_io::read_header;
pub use inspect::Qcow2Info;
pub use inspect::inspect;
pub use open::Opening;
pub use redo::Place;
