//! Policies that decide which files a guest's file cache holds. Pure: no I/O, no clock, no threads,
//! so that the simulator and the tests run the same code as a mount.
//!
//! ```text
//!   open ──► History: counts the use ──► Policy: keep it, or pass ──► drops
//!                      │
//!                      └── prefetch: the files with the most to gain, at mount and in idle time
//! ```
//!
//! Source: No and Park, MultiCache, guest-level component (S5.1 to S5.4). `multicache` is the
//! paper's rule; `lru`, `s3fifo`, `gdsf` and `default` are additions of ours.

mod adaptive;
mod curve;
mod file;
mod gdsf;
mod history;
mod kind;
mod multicache;
mod ordered;
mod policy;
mod s3fifo;
pub mod simulator;

pub use adaptive::Adaptive;
pub use curve::Curve;
pub use file::{Access, FileId, Link, Use};
pub use gdsf::Gdsf;
pub use history::{History, Record};
pub use kind::PolicyKind;
pub use multicache::{Multicache, Windows};
pub use policy::Policy;
pub use s3fifo::S3Fifo;

#[cfg(test)]
mod tests;
