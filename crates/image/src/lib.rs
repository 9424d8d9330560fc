//! Virtual disk images: the only place where guest sectors meet host file offsets.
//!
//! An [`Image`] is a [`Layer`](flowstone_block::Layer) with the operations on an image: size,
//! space, resize. Here is what its formats share, each of which is a crate; `flowstone-formats`
//! opens an image of any of them.

mod capacity;
mod chunks;
mod damage;
mod format;
#[cfg(any(test, feature = "testing"))]
mod fuzzing;
mod image;
mod progress;
mod refusal;
mod report;
pub mod runtime;
mod sample;
mod upkeep;
#[cfg(any(test, feature = "testing"))]
mod waits;

pub use capacity::valid_capacity;
pub use chunks::{CHUNK_BYTES, chunks, is_zero};
pub use damage::{DamageList, DamageWatcher, Damages, Flaw};
pub use format::Format;
#[cfg(any(test, feature = "testing"))]
pub use fuzzing::use_it;
pub use image::{CompactProgress, DiscardMode, Discards, Image, Layout, OwnState, Space, Tell};
pub use progress::Progress;
pub use refusal::{data_beyond_end, refuse_readonly};
pub use report::{CheckOptions, CheckProgress, CheckReport, ERRORS_LISTED_MAX};
pub use sample::{ReadSample, sample_reads};
pub use upkeep::Upkeep;
#[cfg(any(test, feature = "testing"))]
pub use waits::Wait;
