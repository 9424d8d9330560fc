//! What can be chosen when an image is opened.

#![allow(rustdoc::broken_intra_doc_links, reason = "in help, brackets mean optional")]

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use flowstone_block::{Error, Result, parse_size};
use flowstone_fileio::{FileOpener, FileWrapper, OpenOptions, open_host_file};

use crate::Progress;
use crate::format::Format;
use crate::image::{DiscardMode, Tell};
use crate::log::{CopyMemory, ResortLimit, Streams};

/// What can be chosen when an image is opened.
#[derive(Clone, Debug, Default, Args)]
pub struct ImageArgs {
    /// What discards do
    #[arg(long, value_name = "MODE", value_enum, default_value_t)]
    pub discard: DiscardMode,
    /// Whether a log image gives dead segments back at once, so that the drive need not copy what
    /// is in them
    #[arg(long, value_enum, default_value_t)]
    pub tell: Tell,
    /// Where a log image puts what guests write from now on; one that has other streams is changed
    /// [default: as it is]
    #[arg(long, value_enum)]
    pub streams: Option<Streams>,
    /// What a log image may write in a day, in bytes, to put blocks in the order of their LBAs
    /// while guests ask for little, or off [default: a tenth of the disk]
    #[arg(long, value_name = "SIZE_PER_DAY|off")]
    pub resort: Option<ResortLimit>,
    /// Follow backing files into this directory too, besides that of the image; repeat for several
    #[arg(long = "backing-dir", alias = "backing-dirs", value_name = "DIR")]
    pub backing_dirs: Vec<PathBuf>,
}

impl ImageArgs {
    /// To open an image whose host file is opened like this, by `opener`.
    pub fn options(&self, file: OpenOptions, opener: FileOpener) -> ImageOptions {
        let Self { discard, tell, streams, resort, backing_dirs } = self.clone();
        let resort = resort.unwrap_or(ResortLimit::Tenth);
        ImageOptions {
            opener,
            discard,
            tell,
            streams,
            backing_dirs,
            resort,
            ..ImageOptions::new(file)
        }
    }
}

/// What all log images of a process share.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct CopyArgs {
    /// Memory in which the cleaners of all log images together put blocks together that they copy:
    /// with more, copies are written in longer runs, which wears drives with large erase blocks
    /// less [default: 64M]
    #[arg(long, value_name = "SIZE")]
    pub copy_memory: Option<CopyMemorySize>,
}

impl CopyArgs {
    /// That memory.
    pub fn memory(&self) -> CopyMemory {
        self.copy_memory.map_or_else(CopyMemory::default, |it| CopyMemory::new(it.0))
    }
}

/// Bytes for copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyMemorySize(pub u64);

impl FromStr for CopyMemorySize {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        parse_size(text).map(Self)
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
    /// Whether a log image tells the drive what is dead.
    pub tell: Tell,
    /// Which streams a log image is to have, if it is not to keep those it has.
    pub streams: Option<Streams>,
    /// Where the backing file of a qcow2 image may be, besides the directory of the image.
    pub backing_dirs: Vec<PathBuf>,
    /// How much the re-sorting pass of a log image may write.
    pub resort: ResortLimit,
    /// Where the cleaner of a log image puts copies together.
    pub copy_memory: CopyMemory,
    /// Hears how far it has come.
    pub progress: Progress,
    /// How many images are based on this one, for opening backing files.
    pub chain_depth: usize,
}

impl ImageOptions {
    /// To open the host file like this, with everything else left to its default.
    pub fn new(file: OpenOptions) -> Self {
        let discard = DiscardMode::Deallocate;
        let opener = open_host_file;
        let resort = ResortLimit::Off;
        let (wrapper, tell, streams, backing_dirs, copy_memory, progress) = Default::default();
        Self {
            file,
            opener,
            wrapper,
            discard,
            tell,
            streams,
            backing_dirs,
            resort,
            copy_memory,
            progress,
            chain_depth: 0,
        }
    }

    /// Refuses what a format has no use for.
    pub fn check(&self, name: &str, format: Format) -> Result<()> {
        if format != Format::Log && matches!(self.resort, ResortLimit::Bytes(_)) {
            let why = "only a log image is put in order";
            return Err(Error::unsupported(name, why, "leave out --resort"));
        }
        if format != Format::Log && self.tell == Tell::Always {
            let why = "only a log image has segments that die";
            return Err(Error::unsupported(name, why, "leave out --tell"));
        }
        if format != Format::Log && self.streams.is_some() {
            let why = "only a log image has streams";
            return Err(Error::unsupported(name, why, "leave out --streams"));
        }
        let why = match (format, self.discard) {
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
}
