//! The raw format: guest sector `n` lives at byte `512 n` of the host file.

mod channel;
mod check;
mod disk;
mod sparsify;

pub use check::check;
pub use disk::RawImage;
