//! Vocabulary of the block stack: what a request is, what comes back, and the one seam
//! ([`Layer`] / [`Channel`]) that every stage above the host file implements.
//!
//! Nothing here does I/O or knows a transport, a file system or an image format.

mod blocking;
mod buffer;
mod class;
mod doorbell;
mod error;
mod extent;
mod geometry;
mod layer;
mod log_budget;
mod mutant;
mod request;
mod size;

pub use blocking::BlockingDisk;
pub use buffer::{AlignedBuf, IoVec, gather, scatter};
pub use class::{Class, IoPriority};
pub use doorbell::{Doorbells, poll_doorbells};
pub use error::{Error, ErrorKind, Result};
pub use extent::{Extent, SECTOR_BYTES, Sector, SectorCount};
pub use geometry::Geometry;
pub use layer::{Channel, Layer, QueueDepth};
pub use log_budget::LogBudget;
pub use mutant::mutant;
pub use request::{Completion, Op, OpKind, Outcome, Request};
pub use size::{SizeChange, format_size, parse_size};

/// The host's error number, kept unchanged from the failing call to the completion.
pub use rustix::io::Errno;
