//! Sizing of a cache, for the host's sector cache and for the file cache of a guest alike;
//! and the notation of sizes that both of them read and print.
//!
//! ```text
//!   /proc, cgroups ──► Reader ──► Reading ──► Sizer ──► Change
//! ```
//!
//! The host and its guests exchange the sizes of their caches in [`message`]s (S5.4, S5.8). Only
//! [`reading`] does any I/O.

pub mod message;
mod mutant;
pub mod reading;
pub mod size;
pub mod sizer;

pub use mutant::mutated;
