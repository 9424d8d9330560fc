//! How large a cache may be, for the host's sector cache and for the file cache of a guest alike.
//!
//! ```text
//!   /proc, cgroups ──► Reader ──► Reading ──► Sizer ──► Change
//! ```
//!
//! The host and its guests tell each other what they have and may have in [`message`]s (S5.4,
//! S5.8). Only [`reading`] does any I/O.

pub mod message;
mod mutant;
pub mod reading;
pub mod sizer;

pub use mutant::mutant;
