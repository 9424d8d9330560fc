//! The source of a disk's data, and how it is opened.

use std::path::Path;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use flowstone_block::{Error, Result, parse_size};
use flowstone_fileio::{Access, FileOpener, LockPatience, OpenOptions};
use flowstone_formats::ImageOptions;
use flowstone_image::Format;
use tracing::info;

use super::StackArgs;

/// Pollution-defensive caching.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct PdcArgs {
    /// Keep the guest's journals out of the cache and, with --direct off, out of the host's page
    /// cache: only recovery reads them again
    #[arg(long, value_name = "CHOICE", value_enum, default_value_t)]
    pub pdc: Pdc,
}

/// Whether journals are kept out of caches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Pdc {
    /// Journals bypass the caches
    #[default]
    On,
    /// Journals are cached like other data
    Off,
}

/// A stand-in for an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// Completes requests at once, without data; of this size.
    Null(u64),
    /// Keeps data in the daemon's memory; of this size.
    Mem(u64),
}

impl FromStr for Backend {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text.split_once(':') {
            Some(("null", size)) => Ok(Self::Null(parse_size(size)?)),
            Some(("mem", size)) => Ok(Self::Mem(parse_size(size)?)),
            _ => Err(format!("`{text}` is not a backend; use null:SIZE or mem:SIZE")),
        }
    }
}

/// The storage of a disk's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source<'config> {
    /// Nowhere; a disk of this size.
    Null(u64),
    /// In the daemon's memory; a disk of this size.
    Mem(u64),
    /// In the image at this path.
    Image(&'config Path, Format),
}

impl StackArgs {
    /// Returns the source of the disk called `name`; an error if it has none or two.
    pub fn source(&self, name: &str) -> Result<Source<'_>> {
        let refuse = |why| {
            let advice = "give an image, or a backend such as null:8G or mem:1G";
            Err(Error::invalid(format!("disk {name}"), why, advice))
        };
        match (&self.image, self.backend) {
            (Some(_), Some(_)) => refuse("it has both an image and a backend"),
            (None, None) => refuse("it has neither an image nor a backend"),
            (None, Some(Backend::Null(bytes))) => Ok(Source::Null(bytes)),
            (None, Some(Backend::Mem(bytes))) => Ok(Source::Mem(bytes)),
            (Some(path), None) => Ok(Source::Image(path, Format::choose(self.format, path)?)),
        }
    }

    /// Returns the options for opening its image with `opener`.
    pub fn image_options(&self, opener: FileOpener) -> ImageOptions {
        let access = if self.readonly { Access::Read } else { Access::Write };
        let file = OpenOptions {
            dont_cache: self.journals.pdc == Pdc::On,
            lock_patience: LockPatience::telling(|text| info!("{text}")),
            ..self.file.options(access)
        };
        ImageOptions { opener, args: self.opened.clone(), ..ImageOptions::new(file) }
    }
}
