//! `flowstone replay`

use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, ValueEnum};
use flowstone_block::{Error, Result, parse_size};
use flowstone_cache::CacheArgs;
use flowstone_daemon::PdcArgs;
use flowstone_fileio::FileArgs;
use flowstone_image::{CopyArgs, CreateOptions, Format, ImageArgs};
use flowstone_replay::{Generator, SsdOptions, TrimMode};

use super::{LogArgs, Qcow2Args};

/// Arguments of `replay`.
#[derive(Debug, ClapArgs)]
pub struct Replay {
    /// What a guest asks for: a trace, of flowstone record, as CSV
    /// (timestamp_us,op,offset_bytes,length_bytes), fio's I/O log (versions 2 and 3) or blkparse's
    /// text, plain or compressed with zstd
    #[arg(long, value_name = "FILE", required_unless_present = "generate")]
    pub trace: Option<PathBuf>,
    /// What a guest asks for, instead of a trace: writes of 4 KiB, uniform, zipf:0.99, hotcold:95/5
    /// (percent of the writes / of the blocks) or sequential, after the whole disk was written
    #[arg(long, value_name = "LOAD", conflicts_with = "trace")]
    pub generate: Option<Generator>,
    /// Writes of a generated load that are measured [default: four times the disk]
    #[arg(long, value_name = "N", conflicts_with = "trace")]
    pub ops: Option<u64>,
    /// Size of the guest's disk, e.g. 4G [default: as the trace says, or where it ends]
    #[arg(long, value_parser = parse_size)]
    pub size: Option<u64>,
    /// The disk's share of what the host sees of the drive. The image's file may take all of that:
    /// a raw image leaves the rest trimmed, a log image has it as its reserve
    #[arg(long, value_name = "SHARE", default_value_t = 0.8)]
    pub fill: f64,
    /// Image format: raw, qcow2 or log
    #[arg(short, long)]
    pub format: Format,
    /// How a log image is laid out. The default reserve is the largest with which its file fits.
    #[command(flatten)]
    pub log: LogArgs,
    /// The drive: op (flash beyond what the host sees), unit (what is mapped and programmed as one,
    /// 4K to 64K), block (what is erased as one), trim (on, off or batch:SIZE, after so much
    /// written), gc (greedy, fifo, cb), offset (where the file begins); and how fast it is: profile
    /// (sata2014, x25m, nvme, qlc16k), or write, command, trim-cost, program, erase
    #[arg(
        long,
        value_name = "NAME=VALUE,...",
        default_value = "op=7%,unit=4K,block=512K,trim=on,gc=greedy,offset=0"
    )]
    pub ssd: SsdOptions,
    /// Short for --ssd trim=
    #[arg(long, value_name = "MODE")]
    pub trim: Option<TrimMode>,
    /// All of the drive has been written before, and is live to it
    #[arg(long)]
    pub aged: bool,
    /// Requests on their way at once; with --timing trace as many as are due, at most 1024
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub iodepth: usize,
    /// When requests of a trace are made: as soon as there is room, or when the trace says
    #[arg(long, value_name = "WHEN", default_value = "asap")]
    pub timing: WhenMade,
    /// Writes before the measured part [default: seven times the disk; traces: 0]
    #[arg(long, value_name = "N")]
    pub warmup: Option<u64>,
    /// How often a trace is gone through
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "generate")]
    pub passes: u64,
    /// Decides all that is drawn; the same seed gives the same figures
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// A file to make, an empty one, or an empty device, in the place of the model: the image is
    /// made there and served by the engines of `serve`. It is left there
    #[arg(long, value_name = "PATH", conflicts_with_all = ["ssd", "trim", "aged", "fill"])]
    pub onto: Option<PathBuf>,
    /// What is in the file or on the device of --onto may be lost
    #[arg(long, requires = "onto")]
    pub overwrite: bool,
    /// A cache of this size before the image, as that of `serve`
    #[arg(long, value_name = "SIZE")]
    pub cache: Option<String>,
    /// An argument of `create`, e.g. --create-arg=--cluster-size=128K; repeat for several
    #[arg(long = "create-arg", value_name = "ARG", allow_hyphen_values = true)]
    pub create_args: Vec<String>,
    /// An argument of `serve` that says how the image is opened and what is cached, e.g.
    /// --serve-arg=--resort=off; repeat for several
    #[arg(long = "serve-arg", value_name = "ARG", allow_hyphen_values = true)]
    pub serve_args: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// What `--create-arg` takes.
#[derive(Debug, Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct CreateArgs {
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    qcow2: Qcow2Args,
}

/// What `--serve-arg` takes: what a disk's image, and a cache before it, do.
#[derive(Debug, Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
pub struct StorageArgs {
    /// How the image is opened.
    #[command(flatten)]
    pub image: ImageArgs,
    /// How its file is opened.
    #[command(flatten)]
    pub file: FileArgs,
    /// Memory of its cleaner.
    #[command(flatten)]
    pub copies: CopyArgs,
    /// The cache before it.
    #[command(flatten)]
    pub cache: CacheArgs,
    /// What that does with journals.
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
            streams: self.log.streams.or(log.streams),
        };
        Ok(CreateOptions { log: log.options(), qcow2: qcow2.options() })
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

/// When the requests of a trace are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WhenMade {
    /// As soon as there is room.
    Asap,
    /// When the trace says.
    Trace,
}
