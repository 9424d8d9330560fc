//! Operations on images of any format: this crate alone knows all of them.

mod backing;
mod check;
mod convert;
mod create;
mod options;
#[cfg(test)]
mod retirement;

pub use check::check;
pub use convert::convert;
pub use create::{
    CreateOptions, ImageInfo, blank_device, create, create_in, inspect, open, open_stepped,
};
pub use options::{CopyArgs, ImageArgs, ImageOptions};
