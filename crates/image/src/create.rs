//! The two doors into this crate: making a new image and opening an existing one.

use std::path::Path;

use flowstone_block::{Error, Result, SectorCount};
use flowstone_fileio::{OpenOptions, create_sparse};

use crate::raw::RawImage;
use crate::{DiscardMode, Format, Image};

/// How to open an image.
#[derive(Clone, Copy, Debug)]
pub struct ImageOptions {
    /// How to open its host file.
    pub file: OpenOptions,
    /// What discards do.
    pub discard: DiscardMode,
}

/// Makes a new, empty image of `bytes` bytes.
pub fn create(path: &Path, format: Format, bytes: u64) -> Result<()> {
    let name = || format!("create {}", path.display());
    let capacity = valid_capacity(bytes)
        .map_err(|why| Error::invalid(name(), why, "give a --size such as 8G or 512M"))?;
    match format {
        Format::Raw => create_sparse(path, capacity.bytes()),
    }
}

/// Opens the image at `path`.
pub fn open(path: &Path, format: Format, options: ImageOptions) -> Result<Box<dyn Image>> {
    let file = Box::new(options.file.open(path)?);
    match format {
        Format::Raw => {
            let image = RawImage::open(path, file, options.discard, options.file.access)?;
            Ok(Box::new(image))
        }
    }
}

/// A disk's size from bytes, or why there is no such disk.
pub(crate) fn valid_capacity(bytes: u64) -> std::result::Result<SectorCount, &'static str> {
    // File offsets are signed 64-bit numbers (off_t).
    const BYTES_MAX: u64 = i64::MAX as u64;
    match SectorCount::from_bytes(bytes) {
        Some(capacity) if capacity.get() == 0 => Err("its size is 0"),
        Some(_) if bytes > BYTES_MAX => Err("no host file can be that large"),
        Some(capacity) => Ok(capacity),
        None => Err("its size is not a multiple of 512 bytes"),
    }
}
