//! Where a disk's data is, and how it is opened.

use std::path::Path;

use flowstone_block::{Error, Result};
use flowstone_fileio::{Access, FileOpener, LockPatience, OpenOptions};
use flowstone_image::{Format, ImageOptions};
use tracing::info;

use super::{Backend, DiskConfig, Pdc};

/// Where a disk's data is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source<'config> {
    /// Nowhere.
    Null(u64),
    /// In the daemon's memory.
    Mem(u64),
    /// In the image at this path.
    Image(&'config Path, Format),
}

impl DiskConfig {
    /// Where the data is; says what is missing or too much.
    pub fn source(&self) -> Result<Source<'_>> {
        let refuse = |why| {
            let advice = "give an image, or a backend such as null:8G or mem:1G";
            Err(Error::invalid(format!("disk {}", self.name), why, advice))
        };
        match (&self.image, self.backend) {
            (Some(_), Some(_)) => refuse("it has both an image and a backend"),
            (None, None) => refuse("it has neither an image nor a backend"),
            (None, Some(Backend::Null(bytes))) => Ok(Source::Null(bytes)),
            (None, Some(Backend::Mem(bytes))) => Ok(Source::Mem(bytes)),
            (Some(path), None) => Ok(Source::Image(path, Format::choose(self.format, path)?)),
        }
    }

    /// How its image is opened, by `opener`.
    pub fn image_options(&self, opener: FileOpener) -> ImageOptions {
        let access = if self.readonly { Access::Read } else { Access::Write };
        let file = OpenOptions {
            direct: self.direct.0,
            dont_cache: self.pdc == Pdc::On,
            engine: self.engine.0,
            lock_patience: LockPatience::telling(|text| info!("{text}")),
            ..OpenOptions::new(access)
        };
        let (discard, backing_dirs) = (self.discard, self.backing_dirs.clone());
        let resort = self.resort.0;
        ImageOptions { discard, opener, backing_dirs, resort, ..ImageOptions::new(file) }
    }
}
