//! Options for opening an image.

#![allow(rustdoc::broken_intra_doc_links, reason = "in help, brackets mean optional")]

use std::path::PathBuf;

use clap::Args;
use flowstone_block::{Error, Result, parse_size};
use flowstone_fileio::{FileOpener, FileWrapper, OpenOptions, open_host_file};

use flowstone_image::{DiscardMode, Format, Progress, Tell};
use flowstone_log::{CopyMemory, ResortLimit, Streams, UpkeepOptions};

/// Options of opening an image.
#[derive(Clone, Debug, Default, Args)]
pub struct ImageArgs {
    /// Handling of discards
    #[arg(long, value_name = "MODE", value_enum, default_value_t)]
    pub discard: DiscardMode,
    /// Give dead segments of a log image back to the host at once, so that the drive does not copy
    /// their contents
    #[arg(long, value_enum, default_value_t)]
    pub tell: Tell,
    /// Streams for guest writes of a log image; an image with other streams is changed [default:
    /// unchanged]
    #[arg(long, value_enum)]
    pub streams: Option<Streams>,
    /// Maximum bytes per day that a log image writes to put blocks into LBA order while guests
    /// issue few requests, or off [default: a tenth of the disk]
    #[arg(long, value_name = "SIZE_PER_DAY|off")]
    pub resort: Option<ResortLimit>,
    /// Allow backing files in this directory, besides that of the image; repeat for several
    #[arg(long = "backing-dir", alias = "backing-dirs", value_name = "DIR")]
    pub backing_dirs: Vec<PathBuf>,
}

/// Options that all log images of a process share.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct CopyArgs {
    /// Total memory for the copies that the cleaners of all log images make. With more memory,
    /// copies are written in longer runs, which wears drives with large erase blocks less [default:
    /// 64M]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub copy_memory: Option<u64>,
}

impl CopyArgs {
    /// Returns the memory for copies.
    pub fn memory(&self) -> CopyMemory {
        self.copy_memory.map_or_else(CopyMemory::default, CopyMemory::new)
    }
}

/// Options for opening an image.
#[derive(Clone, Debug)]
pub struct ImageOptions {
    /// Options for opening the host file.
    pub file: OpenOptions,
    /// Function that opens the host file.
    pub opener: FileOpener,
    /// Wrapper between the host file and the image.
    pub wrapper: FileWrapper,
    /// The options that are given by name.
    pub args: ImageArgs,
    /// Memory in which the cleaner of a log image gathers copies.
    pub copy_memory: CopyMemory,
    /// Exponent of the age of segments in the choice of the next one that a log image cleans;
    /// `None` for its own.
    pub age_power: Option<f64>,
    /// Number of lifetimes by which a log image keeps copies apart; `None` for all that it has.
    pub copy_lifetimes: Option<u8>,
    /// Whether a qcow2 image has a redo file for the daemon that follows a killed one. A new image
    /// that is being filled is made anew instead.
    pub has_redo: bool,
    /// Progress of the open.
    pub progress: Progress,
    /// Number of images based on this one, for opening backing files.
    pub chain_depth: usize,
}

impl ImageOptions {
    /// Options to open the host file with `file`, without re-sorting, and defaults for everything
    /// else.
    pub fn new(file: OpenOptions) -> Self {
        let (wrapper, copy_memory, progress) = Default::default();
        Self {
            file,
            opener: open_host_file,
            wrapper,
            args: ImageArgs { resort: Some(ResortLimit::Off), ..ImageArgs::default() },
            copy_memory,
            age_power: None,
            copy_lifetimes: None,
            has_redo: true,
            progress,
            chain_depth: 0,
        }
    }

    /// Returns how a log image keeps itself up.
    pub(crate) fn upkeep(&self) -> UpkeepOptions {
        let ImageArgs { resort, tell, .. } = self.args;
        let Self { age_power, copy_lifetimes, .. } = *self;
        let (resort, copy_memory) =
            (resort.unwrap_or(ResortLimit::Tenth), self.copy_memory.clone());
        UpkeepOptions { resort, tell, copy_memory, age_power, copy_lifetimes }
    }

    /// Refuses options that the format does not support.
    pub fn check(&self, name: &str, format: Format) -> Result<()> {
        let ImageArgs { discard, tell, streams, resort, .. } = self.args;
        let of_log_images: [(bool, &str, &'static str); 5] = [
            (
                matches!(resort, Some(ResortLimit::Bytes(_))),
                "only a log image is put in order",
                "leave out --resort",
            ),
            (tell == Tell::Always, "only a log image has segments that die", "leave out --tell"),
            (streams.is_some(), "only a log image has streams", "leave out --streams"),
            (
                self.age_power.is_some(),
                "only a log image chooses segments to clean",
                "leave out --age-power",
            ),
            (
                self.copy_lifetimes.is_some(),
                "only a log image has lifetimes",
                "leave out --lifetimes",
            ),
        ];
        let given = of_log_images.into_iter().find(|(given, ..)| *given);
        if let Some((_, why, advice)) = given.filter(|_| format != Format::Log) {
            return Err(Error::unsupported(name, why, advice));
        }
        let why = match (format, discard) {
            // A log image writes elsewhere anyway: space kept for a discarded block would be
            // useless.
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
