//! Virtual disk images: the only place where guest sectors meet host file offsets.
//!
//! An [`Image`] is a [`Layer`](flowstone_block::Layer) with the operations on an image: size,
//! space, resize, check, convert.

mod capacity;
mod check;
mod convert;
mod create;
mod damage;
#[cfg(test)]
mod deadly;
mod format;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
mod image;
pub mod log;
mod options;
mod progress;
pub mod qcow2;
pub mod raw;
mod report;
#[cfg(test)]
mod retirement;
mod runtime;
mod sample;
mod upkeep;
#[cfg(test)]
mod waits;

pub use check::check;
pub use convert::convert;
pub use create::{CreateOptions, ImageInfo, create, create_in, inspect, open, open_stepped};
pub use damage::{DamageWatcher, Damages};
pub use format::Format;
pub use image::{
    CompactProgress, DiscardMode, Discards, Image, Layout, LogCosts, LogState, Space, Tell,
};
pub use log::{CopyMemory, EraseUnit, LogInfo, LogOptions, ResortLimit, Streams};
pub use options::{CopyArgs, ImageArgs, ImageOptions};
pub use progress::Progress;
pub use qcow2::{Backing, Qcow2Info, Qcow2Options};
pub use report::{CheckOptions, CheckProgress, CheckReport};
pub use sample::{ReadSample, sample_reads};
pub use upkeep::Upkeep;
