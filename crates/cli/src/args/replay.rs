//! `flowstone replay`

use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, ValueEnum};
use flowstone_block::{Error, Result, parse_size};
use flowstone_cache::CacheArgs;
use flowstone_daemon::PdcArgs;
use flowstone_fileio::FileArgs;
use flowstone_formats::{CopyArgs, CreateOptions, ImageArgs};
use flowstone_image::Format;
use flowstone_log::Streams;
use flowstone_replay::{Generator, SsdOptions, TrimMode};

use super::{LogArgs, Qcow2Args};

/// Lifetimes of copies, and all of SepBIT: two of guests' writes come on top.
const COPY_LIFETIMES: u8 = 4;
const LIFETIMES_SEPBIT: u8 = 2 + COPY_LIFETIMES;

/// Arguments of `replay`.
#[derive(Debug, ClapArgs)]
pub struct Replay {
    /// Trace of a guest's requests: of flowstone record, CSV
    /// (timestamp_us,op,offset_bytes,length_bytes), fio's I/O log (versions 2 and 3) or blkparse's
    /// text, plain or compressed with zstd
    #[arg(long, value_name = "FILE", required_unless_present = "generate")]
    pub trace: Option<PathBuf>,
    /// Generated load, instead of a trace: writes of 4 KiB, uniform, zipf:0.99, hotcold:95/5
    /// (percent of the writes / of the blocks) or sequential, after the whole disk was written
    #[arg(long, value_name = "LOAD", conflicts_with = "trace")]
    pub generate: Option<Generator>,
    /// Measured writes of a generated load [default: four times the disk]
    #[arg(long, value_name = "N", conflicts_with = "trace")]
    pub ops: Option<u64>,
    /// Size of the guest's disk, e.g. 4G [default: as recorded in the trace, but at least its end]
    #[arg(long, value_parser = parse_size)]
    pub size: Option<u64>,
    /// Number of guests on one drive, for a host that keeps several: each has a disk of --size on
    /// an image of its own, and the same trace, or the generated load from a seed of its own
    /// (--seed plus its number, from 0)
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "onto")]
    pub images: usize,
    /// Size of the disk as a share of the capacity that the host sees of the drive. The image's
    /// file may take all of that capacity: a raw image leaves the rest trimmed, a log image uses it
    /// as its reserve
    #[arg(long, value_name = "SHARE", default_value_t = 0.8)]
    pub fill: f64,
    /// Image format: raw, qcow2 or log
    #[arg(short, long)]
    pub format: Format,
    /// Layout of a log image. The default reserve is the largest with which its file fits.
    #[command(flatten)]
    pub log: LogArgs,
    /// Drive: op (over-provisioning), unit (mapping unit, 4K to 64K), block (erase block), trim
    /// (on, off or batch:SIZE, each time SIZE has been written), gc (collector: greedy, fifo, cb),
    /// streams (write streams, 0 to 16), offset (start of the file); and its speed: profile
    /// (sata2014, x25m, nvme, qlc16k), or write, command, trim-cost, program, erase, dies,
    /// channels, channel (transfer rate of one)
    #[arg(
        long,
        value_name = "NAME=VALUE,...",
        default_value = "op=7%,unit=4K,block=512K,trim=on,gc=greedy,offset=0"
    )]
    pub ssd: SsdOptions,
    /// Short for --ssd trim=
    #[arg(long, value_name = "MODE")]
    pub trim: Option<TrimMode>,
    /// Treat all of the drive as written before, and live
    #[arg(long)]
    pub aged: bool,
    /// Requests in flight; with --timing trace as many as are due, at most 1024
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub iodepth: usize,
    /// Timing of the requests of a trace
    #[arg(long, value_name = "WHEN", default_value = "asap")]
    pub timing: WhenMade,
    /// Writes before the measured part [default: seven times the disk; traces: 0]
    #[arg(long, value_name = "N")]
    pub warmup: Option<u64>,
    /// Number of passes over a trace
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "generate")]
    pub passes: u64,
    /// Seed of all random choices; the same seed gives the same figures
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// New or empty file, or empty device, to use instead of the model: the image is created there,
    /// served by the engines of `serve`, and left there
    #[arg(long, value_name = "PATH", conflicts_with_all = ["ssd", "trim", "aged", "fill"])]
    pub onto: Option<PathBuf>,
    /// Overwrite data in the file or on the device of --onto
    #[arg(long, requires = "onto")]
    pub overwrite: bool,
    /// Size of a cache before the image, like that of `serve` [default: no cache]
    #[arg(long, value_name = "SIZE")]
    pub cache: Option<String>,
    /// An argument of `create`, e.g. --create-arg=--cluster-size=128K; repeat for several
    #[arg(long = "create-arg", value_name = "ARG", allow_hyphen_values = true)]
    pub create_args: Vec<String>,
    /// An argument of `serve` for the image or the cache, e.g. --serve-arg=--resort=off; repeat for
    /// several
    #[arg(long = "serve-arg", value_name = "ARG", allow_hyphen_values = true)]
    pub serve_args: Vec<String>,
    /// Log images: exponent of the age of segments in the choice of the next one to clean, 0 to 1;
    /// with 0 the emptiest is cleaned [default: 0.5, as `serve`]
    #[arg(long, value_name = "N", value_parser = age_power)]
    pub age_power: Option<f64>,
    /// Log images: number of lifetimes by which blocks are kept apart, 2 to 6: guests' writes, and
    /// copies in one class up to four; 6 (SepBIT) also keeps apart what a generated load soon
    /// writes again [default: 5, as `serve`]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(2..=6))]
    pub lifetimes: Option<u8>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

fn age_power(text: &str) -> std::result::Result<f64, String> {
    let power = text.parse().ok().filter(|power| (0.0..=1.0).contains(power));
    power.ok_or_else(|| "give a number from 0 to 1".to_owned())
}

/// Options that `--create-arg` accepts.
#[derive(Debug, Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct CreateArgs {
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    qcow2: Qcow2Args,
}

/// Options that `--serve-arg` accepts: those of a disk's image, and of a cache before it.
#[derive(Debug, Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
pub struct StorageArgs {
    /// Options of the image.
    #[command(flatten)]
    pub image: ImageArgs,
    /// Options of its file.
    #[command(flatten)]
    pub file: FileArgs,
    /// Memory of its cleaner.
    #[command(flatten)]
    pub copies: CopyArgs,
    /// The cache before it.
    #[command(flatten)]
    pub cache: CacheArgs,
    /// Handling of journals in the cache.
    #[command(flatten)]
    pub journals: PdcArgs,
}

impl Replay {
    /// Returns how the image is made: options of `replay` precede `--create-arg`.
    pub fn create_options(&self) -> Result<CreateOptions> {
        let CreateArgs { log, qcow2 } = parsed("--create-arg", "create", &self.create_args)?;
        let log = LogArgs {
            segment: self.log.segment.or(log.segment),
            erase_unit: self.log.erase_unit.or(log.erase_unit),
            reserve: self.log.reserve.or(log.reserve),
            streams: self
                .log
                .streams
                .or(log.streams)
                .or(self.tells_soon().then_some(Streams::Class)),
        };
        Ok(CreateOptions { log: log.options(), qcow2: qcow2.options() })
    }

    /// Returns whether blocks that are soon written again are kept apart.
    pub fn tells_soon(&self) -> bool {
        self.lifetimes == Some(LIFETIMES_SEPBIT)
    }

    /// Returns the number of lifetimes of copies.
    pub fn copy_lifetimes(&self) -> Option<u8> {
        self.lifetimes.map(|count| (count - 1).min(COPY_LIFETIMES))
    }

    /// Returns how the image is opened, and what is cached.
    pub fn storage(&self) -> Result<StorageArgs> {
        let cache = self.cache.iter().map(|size| format!("--cache={size}"));
        let args: Vec<_> = cache.chain(self.serve_args.iter().cloned()).collect();
        parsed("--serve-arg", "serve", &args)
    }
}

fn parsed<T: Parser>(option: &str, command: &str, args: &[String]) -> Result<T> {
    T::try_parse_from(args).map_err(|error| {
        let text = error.to_string();
        let lines = text.lines().map(str::trim).take_while(|line| !line.is_empty());
        let why = lines.collect::<Vec<_>>().join(" ");
        let why = why.trim_start_matches("error: ");
        let advice = "give what decides over an image or a cache; see --help of create and serve";
        Error::invalid(format!("{option} (of `{command}`)"), why.to_owned(), advice)
    })
}

/// Timing of the requests of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WhenMade {
    /// As soon as fewer than --iodepth are in flight.
    Asap,
    /// At the times of the trace.
    Trace,
}
