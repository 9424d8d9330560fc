//! What a trace says about how its disk is best kept: which format, how large a cache, and what
//! that does to the drive. docs/replay.md, "Advice", has the rules.
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
