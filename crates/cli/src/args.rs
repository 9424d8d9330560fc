//! Command-line arguments. Each option is described here and nowhere else: `--help`, the man pages
//! and the completions are generated from this module.

#![allow(rustdoc::broken_intra_doc_links, reason = "in help, brackets mean optional")]

mod advise;
mod disk;
mod group;
mod record;
mod replay;
mod serve;

use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use flowstone_block::Result;
use flowstone_block::{SizeChange, parse_size};
use flowstone_daemon::{CONTROL_DEFAULT, CONTROL_VARIABLE};
use flowstone_formats::CreateOptions;
use flowstone_image::Format;
use flowstone_log::{LogOptions, Streams};
use flowstone_qcow2::{Backing, Qcow2Options};

pub use self::advise::Advise;
pub use self::disk::{AddDisk, Disk, DiskCommand, RemoveDisk, SetDisk, ShowDisk};
pub use self::group::{AddGroup, Group, GroupCommand, RemoveGroup, SetGroup};
pub use self::record::Record;
pub use self::replay::{Replay, StorageArgs, WhenMade};
pub use self::serve::Serve;

/// Virtual disks for QEMU/KVM guests, served over vhost-user-blk
///
/// Sizes take K, M, G or T (powers of 1024; also KiB, MiB, GiB, TiB) and decimals, e.g. 1.5G; a
/// fraction that is no whole number of sectors is rounded up to one. The image format comes from
/// --format or the file's name (.raw, .img, .qcow2, .flow), never from the file's content. Exit
/// status: 0 done, 1 failed or refused, 2 arguments that cannot be parsed.
#[derive(Debug, Parser)]
#[command(name = "flowstone", version, propagate_version = true, max_term_width = 100)]
pub struct Args {
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make a new, empty image
    Create(Create),
    /// Show an image's format, size and space; works while it is in use
    Info(ReportArgs),
    /// Check an image; exit status 0 clean, 2 errors found, 3 only leaked space
    Check(Check),
    /// Copy an image into a new one, keeping holes as holes
    ///
    /// The new file is called TARGET.part until it is whole and durable. If the command is ended
    /// before, that file stays; remove it, and convert again.
    Convert(Convert),
    /// Change the size of an image, or of a disk that is being served
    Resize(Resize),
    /// Put the data of a log or qcow2 image in the order of the disk, and give space without data
    /// back to the host
    ///
    /// Can be interrupted at any time: nothing is lost, and the next run continues. Prints, before
    /// and after: the host space used; the runs of data (contiguous ranges of the file in a
    /// sequential read of the whole disk); the extents of the file on the host; and the sequential
    /// read speed of a sample of the data, where direct I/O is possible.
    Compact(Compact),
    /// Serve disks to guests until SIGTERM
    Serve(Box<Serve>),
    /// Record the requests of the guest of a disk that is being served
    ///
    /// Records each request with its time, offset, length and class, and the ranges that held data
    /// at the start, but none of the data itself. Prints at its end the number of requests
    /// recorded, and of those lost because this command, or its disk, was too slow: guests wait for
    /// neither. The output is a trace for `flowstone replay`.
    Record(Record),
    /// Run a trace or a generated load through an image on a model of an SSD, and show its wear
    ///
    /// The image is the product's own code; the drive is a model with a page-mapped flash
    /// translation layer. The replay runs on one thread and in the drive's time: the same command
    /// gives the same figures on any machine. Blocks are of 4 KiB; WAF is write amplification:
    /// blocks written at a lower level for each block written at a higher one.
    Replay(Box<Replay>),
    /// Recommend format and cache for the disk of a trace, and estimate the wear of the drive
    ///
    /// Replays the trace on a model of the drive with each format, and under other circumstances
    /// that may change the answer. Raw unless another format programs at least 5 % less.
    Advise(Advise),
    /// Show the statistics of a running daemon
    Stats(Stats),
    /// Add, list, change and remove the disks of a running daemon
    Disk(Disk),
    /// Add, list, change and remove groups of disks that share a limit
    Group(Group),
    /// Show events of the disks of a running daemon, until it ends
    ///
    /// Prints a line of JSON each time a disk is added, opening, serving, failed, removed, resized,
    /// full or damaged, and each time a guest has connected or disconnected. If this command does
    /// not keep up, a line gives the number of lost events.
    Events(Daemon),
    /// Have a running daemon read its configuration again
    ///
    /// New disks are added, disks that are gone are removed unless a guest is attached, limits and
    /// weights are changed. Prints these changes, and the settings that take effect only when a
    /// disk is served anew. A configuration that cannot be read changes nothing.
    Reload(Query),
}

/// A daemon that is running.
#[derive(Debug, ClapArgs)]
pub struct Daemon {
    /// The daemon's control socket
    #[arg(long, value_name = "SOCK", env = CONTROL_VARIABLE, hide_env_values = true,
        default_value = CONTROL_DEFAULT)]
    pub control: PathBuf,
}

/// A daemon that is asked, and the form of its answer.
#[derive(Debug, ClapArgs)]
pub struct Query {
    /// The daemon.
    #[command(flatten)]
    pub daemon: Daemon,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `create`.
#[derive(Debug, ClapArgs)]
pub struct Create {
    /// Size of the disk, e.g. 8G; a multiple of 512 bytes
    #[arg(long, value_parser = parse_size)]
    pub size: u64,
    /// Image format: raw (the disk's sectors as they are), qcow2 (as QEMU's) or log (small random
    /// writes become large sequential ones, with checksums) [default: from the name: .raw, .img,
    /// .qcow2, .flow]
    ///
    /// Which one is gentler on an SSD (flash programmed per byte that the guest writes, under zipf
    /// writes unless said): log where TRIM does not reach the drive (2.45, raw 6.39), where it maps
    /// 16K instead of 4K (2.53, 9.27), where it has write streams, and where its erase blocks have
    /// 512K (2.35, 2.52). Elsewhere raw with TRIM is: erase blocks of 2M (2.59, log 2.94) or 32M
    /// (2.68, 6.60), uniform writes (2.15, 3.37).
    #[arg(short, long)]
    pub format: Option<Format>,
    /// Layout of a log image.
    #[command(flatten)]
    pub log: LogArgs,
    /// Layout of a qcow2 image.
    #[command(flatten)]
    pub qcow2: Qcow2Args,
    /// qcow2 images: backing file, which has the contents of the disk until it is written; the name
    /// is recorded as given, and is relative to the directory of IMAGE
    #[arg(short, long, value_name = "FILE")]
    pub backing: Option<PathBuf>,
    /// Format of the backing file, raw or qcow2, if its name does not show it
    #[arg(short = 'F', long, value_name = "FORMAT", requires = "backing")]
    pub backing_format: Option<Format>,
    /// File to create, which must not exist; or, for a log image, an empty block device
    pub image: PathBuf,
}

/// Options of a new log image.
#[derive(Debug, ClapArgs)]
pub struct LogArgs {
    /// Log images: size of a segment, the unit in which space is used again: a power of two from
    /// 256K to 1G [default: four erase units, if the disk has 128 of those; 1/512 of the disk, at
    /// least 1M and at most 32M, if that is more]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub segment: Option<u64>,
    /// Log images: erase unit of the drive, a multiple of 4K up to 1G [default: the larger of the
    /// device's discard_granularity and optimal_io_size if that is 1M or more, else 32M]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub erase_unit: Option<u64>,
    /// Log images: space beyond the size of the disk, in percent of the whole, 3 to 74; with more,
    /// the cleaner copies less [default: 25]
    #[arg(long, value_name = "PCT")]
    pub reserve: Option<u32>,
    /// Log images: streams for guest writes [default: one]
    #[arg(long, value_enum)]
    pub streams: Option<Streams>,
}

/// Options of a new qcow2 image.
#[derive(Debug, ClapArgs)]
pub struct Qcow2Args {
    /// qcow2 images: size of a cluster, the unit in which space is given and taken back: a power of
    /// two from 512 to 2M [default: 64K]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub cluster_size: Option<u64>,
    /// qcow2 images: off, or metadata (allocate the whole map now, with a place for each cluster;
    /// host space is still allocated when a cluster is written) [default: off]
    #[arg(long, value_name = "MODE")]
    pub preallocation: Option<Preallocation>,
}

/// Structures to preallocate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Preallocation {
    /// Nothing.
    Off,
    /// The map.
    Metadata,
}

impl Qcow2Args {
    /// Returns the options for the image.
    pub fn options(&self) -> Qcow2Options {
        Qcow2Options {
            cluster_bytes: self.cluster_size,
            preallocate: self.preallocation == Some(Preallocation::Metadata),
            backing: None,
        }
    }
}

impl Create {
    /// Returns the options of the formats.
    pub fn options(&self) -> Result<CreateOptions> {
        let backing = self.backing.as_ref().map(|path| {
            let format = Format::choose(self.backing_format, path)?;
            Ok(Backing { path: path.clone(), format })
        });
        let qcow2 = Qcow2Options { backing: backing.transpose()?, ..self.qcow2.options() };
        Ok(CreateOptions { log: self.log.options(), qcow2 })
    }
}

impl Convert {
    /// Returns the options of the formats.
    pub fn options(&self) -> CreateOptions {
        CreateOptions { log: self.log.options(), qcow2: self.qcow2.options() }
    }
}

impl LogArgs {
    /// Returns the options for the image.
    pub fn options(&self) -> LogOptions {
        LogOptions {
            segment_bytes: self.segment,
            erase_unit_bytes: self.erase_unit,
            reserve_percent: self.reserve,
            streams: self.streams.unwrap_or_default(),
        }
    }
}

/// An image to report on, and the form of the report.
#[derive(Debug, ClapArgs)]
pub struct ReportArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Image format, raw, qcow2 or log, if the file's name does not show it
    #[arg(short, long)]
    pub format: Option<Format>,
    /// The image
    pub image: PathBuf,
}

/// Arguments of `check`.
#[derive(Debug, ClapArgs)]
pub struct Check {
    /// Read all data too, and compare it with its checksums (a raw image is always read)
    #[arg(long)]
    pub data: bool,
    /// Repair damage that can be repaired safely, and report losses (a raw image has nothing to
    /// repair)
    #[arg(long)]
    pub repair: bool,
    /// The image, and the form of the report.
    #[command(flatten)]
    pub report: ReportArgs,
}

/// Arguments of `convert`.
#[derive(Debug, ClapArgs)]
pub struct Convert {
    /// Format of the new image, raw, qcow2 or log, if its name does not show it
    #[arg(short = 'O', long)]
    pub format: Option<Format>,
    /// Format of the source, raw, qcow2 or log, if its name does not show it
    #[arg(short = 'f', long)]
    pub source_format: Option<Format>,
    /// Layout of a new log image.
    #[command(flatten)]
    pub log: LogArgs,
    /// Layout of a new qcow2 image.
    #[command(flatten)]
    pub qcow2: Qcow2Args,
    /// Allow backing files in this directory, besides that of the image; repeat for several
    #[arg(long = "backing-dir", value_name = "DIR")]
    pub backing_dirs: Vec<PathBuf>,
    /// The image to read
    pub source: PathBuf,
    /// Image to create; it must not exist
    pub target: PathBuf,
}

/// Arguments of `resize`.
#[derive(Debug, ClapArgs)]
pub struct Resize {
    /// Ask the daemon at this control socket: the disk grows while its guest runs
    #[arg(long, value_name = "SOCK")]
    pub control: Option<PathBuf>,
    /// Image format, raw, qcow2 or log, if the file's name does not show it
    #[arg(short, long)]
    pub format: Option<Format>,
    /// Allow backing files in this directory, besides that of the image; repeat for several
    #[arg(long = "backing-dir", value_name = "DIR")]
    pub backing_dirs: Vec<PathBuf>,
    /// The image; with --control, also the disk's name
    pub image: PathBuf,
    /// New size, e.g. 16G, or a change of the size, e.g. +1G or -1G; shrinking is refused if there
    /// is data behind the new end
    #[arg(value_parser = SizeChange::parse, allow_hyphen_values = true)]
    pub size: SizeChange,
}

/// Arguments of `compact`.
#[derive(Debug, ClapArgs)]
pub struct Compact {
    /// Image format, if the file's name does not show it
    #[arg(short, long)]
    pub format: Option<Format>,
    /// Allow backing files in this directory, besides that of the image; repeat for several
    #[arg(long = "backing-dir", value_name = "DIR")]
    pub backing_dirs: Vec<PathBuf>,
    /// The image; it must not be in use
    pub image: PathBuf,
}

/// Arguments of `stats`.
#[derive(Debug, ClapArgs)]
pub struct Stats {
    /// The daemon, and the form of its answer.
    #[command(flatten)]
    pub query: Query,
    /// Show the recognised layout of a disk: partitions, file systems, journals. DISK is its name
    /// or its image
    #[arg(long, value_name = "DISK")]
    pub layout: Option<String>,
    /// Show the NUMA nodes of guests' memory, of their queues and of the host's CPUs, and those on
    /// which vCPUs should run
    #[arg(long, conflicts_with = "layout")]
    pub numa: bool,
    /// Also print the buckets of durations: upper bound and count of each that is not empty
    #[arg(long, requires = "json", conflicts_with_all = ["layout", "numa"])]
    pub buckets: bool,
}
