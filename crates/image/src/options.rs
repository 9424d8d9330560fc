//! What can be chosen when an image is opened.

#![allow(rustdoc::broken_intra_doc_links, reason = "in help, brackets mean optional")]

use std::path::PathBuf;

use clap::Args;
use flowstone_block::{Error, Result};
use flowstone_fileio::{FileOpener, FileWrapper, OpenOptions, open_host_file};

use crate::format::Format;
use crate::image::DiscardMode;
use crate::log::ResortLimit;

/// What can be chosen when an image is opened.
#[derive(Clone, Debug, Default, Args)]
pub struct ImageArgs {
    /// What discards do
    #[arg(long, value_name = "MODE", value_enum, default_value_t)]
    pub discard: DiscardMode,
    /// What a log image may write in a day, in bytes, to put blocks in the order of their LBAs
    /// while guests are idle, or off [default: a tenth of the disk]
    #[arg(long, value_name = "SIZE_PER_DAY|off")]
    pub resort: Option<ResortLimit>,
    /// Follow backing files into this directory too, besides that of the image; repeat for several
    #[arg(long = "backing-dir", alias = "backing-dirs", value_name = "DIR")]
    pub backing_dirs: Vec<PathBuf>,
}

impl ImageArgs {
    /// To open an image whose host file is opened like this, by `opener`.
    pub fn options(&self, file: OpenOptions, opener: FileOpener) -> ImageOptions {
        let Self { discard, resort, backing_dirs } = self.clone();
        let resort = resort.unwrap_or(ResortLimit::Tenth);
        ImageOptions { opener, discard, backing_dirs, resort, ..ImageOptions::new(file) }
    }
}

/// How to open an image.
#[derive(Clone, Debug)]
pub struct ImageOptions {
    /// How to open its host file.
    pub file: OpenOptions,
    /// What opens it.
    pub opener: FileOpener,
    /// What stands between it and the image.
    pub wrapper: FileWrapper,
    /// What discards do.
    pub discard: DiscardMode,
    /// Where the backing file of a qcow2 image may be, besides the directory of the image.
    pub backing_dirs: Vec<PathBuf>,
    /// How much the idle-time pass of a log image may write.
    pub resort: ResortLimit,
    /// How many images are based on this one, for opening backing files.
    pub chain_depth: usize,
}

impl ImageOptions {
    /// To open the host file like this, with everything else left to its default.
    pub fn new(file: OpenOptions) -> Self {
        let discard = DiscardMode::Deallocate;
        let opener = open_host_file;
        let resort = ResortLimit::Off;
        let (wrapper, backing_dirs) = Default::default();
        Self { file, opener, wrapper, discard, backing_dirs, resort, chain_depth: 0 }
    }

    /// Refuses what a format has no use for.
    pub fn check(&self, name: &str, format: Format) -> Result<()> {
        check_options(name, format, self.discard, self.resort)
    }
}

/// Refuses what the format has no use for.
pub fn check_options(
    name: &str,
    format: Format,
    discard: DiscardMode,
    resort: ResortLimit,
) -> Result<()> {
    if format != Format::Log && matches!(resort, ResortLimit::Bytes(_)) {
        let why = "only a log image is put in order while guests are idle";
        return Err(Error::unsupported(name, why, "leave out --resort"));
    }
    let why = match (format, discard) {
        // It writes elsewhere anyway: space kept for a discarded block would have no use.
        (Format::Log, DiscardMode::Keep) => {
            "a log image keeps no space for a discarded block, which it would write elsewhere"
        }
        (Format::Qcow2, DiscardMode::Keep) => {
            "a qcow2 image gives the space of whole clusters back, or keeps it as it is"
        }
        _ => return Ok(()),
    };
    Err(Error::unsupported(name, why, "use --discard deallocate or ignore, or a raw image"))
}
