//! A deterministic model of a solid-state drive.
//!
//! ```text
//!   writes, trims ──► Ftl ──► Counts: units written, copied, trimmed; blocks erased
//!                      │
//!                      └─ Victims: which block is collected next
//! ```
//!
//! Time and content are no part of it: the same calls give the same counts.

mod ftl;
mod victims;

pub use ftl::{Counts, Ftl, Shape};
pub use victims::Policy;
