//! Advice from a trace: the best format for its disk, the cache size, and the effect on the drive.
//! docs/replay.md, "Advice", has the rules.
//!
//! ```text
//!   trace ──► Summary ─────────────────────────────────► Advice
//!     ├─────► replays: each format, and what would change the answer
//!     └─────► cache: hits by size
//! ```

mod advice;
mod cache;
mod measure;
mod summary;
mod wear;

pub use advice::{Advice, Alternative, Change, advise};
pub use measure::{AdviseOptions, Progress};
pub use wear::Wear;
