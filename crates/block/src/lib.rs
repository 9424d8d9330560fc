//! Vocabulary of the block stack: requests, completions, the interface of every stage above the
//! host file ([`Layer`] / [`Channel`]), and that of front ends ([`GuestQueue`]).
//!
//! Nothing here does I/O or knows a transport, a file system or an image format.

#[macro_use]
mod named;

mod blocking;
mod buffer;
mod class;
mod clock;
mod damage;
mod error;
mod extent;
mod geometry;
mod guarded;
mod guest_queue;
mod layer;
mod lock;
mod log_budget;
mod metric;
mod origin;
mod pages;
mod per_queue;
mod printable;
mod published;
mod request;
mod throttle;
mod token;

pub use blocking::BlockingDisk;
pub use buffer::{AlignedBuf, IoVec, Slab, gather, scatter};
pub use class::{Class, IoPriority};
pub use clock::{Clock, TimeSource};
pub use damage::Damage;
pub use error::{Error, ErrorKind, Result};
pub use extent::{Extent, SECTOR_BYTES, Sector, SectorCount};
pub use geometry::{FILL_BYTES_MAX, Geometry};
pub use guarded::{Guarded, is_any_broken, is_whole};
pub use guest_queue::{BackHalf, Finished, FrontHalf, GuestQueue, QueueRunner, Signal, Taken};
pub use layer::{Channel, Layer, QueueContext, QueueDepth};
pub use lock::lock;
pub use log_budget::LogBudget;
pub use metric::{Family, Metric, MetricKind};
pub use origin::{Origin, Peer};
pub use pages::Pages;
pub use per_queue::{PerQueue, count};
pub use printable::Printable;
pub use published::{Published, ReaderWaker, Seen};
pub use request::{Completion, Op, OpKind, Outcome, Request};
pub use throttle::{Intake, Throttle};
pub use token::{Token, TokenSource};

pub use flowstone_memory::size::{SizeChange, format_size, parse_size};
#[cfg(feature = "model")]
pub use flowstone_reactor::model;
pub use flowstone_reactor::{NextLook, Reactor, Waker, mutated, sync};

/// The host's error number, kept unchanged from the failing call to the completion.
pub use rustix::io::Errno;
