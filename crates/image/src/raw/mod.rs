//! The raw format: guest sector `n` lives at byte `512 n` of the host file.

mod channel;
mod disk;

pub use disk::RawImage;
