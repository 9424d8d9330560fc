//! Command-line arguments. Each option is described here and nowhere else: `--help`, the man pages
//! and the completions are generated from this module.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use flowstone_policy::PolicyKind;

use crate::units::{parse_space, parse_time};

/// Shortest timeout: a shorter silence is normal.
const TIMEOUT_MIN: Duration = Duration::from_millis(100);

/// A file cache in front of shared storage
///
/// Sizes take K, M, G or T (powers of 1024), e.g. 512M; times take s and ms, e.g. 3s. Exit status:
/// 0 done, 1 failed, 2 wrong usage.
#[derive(Debug, Parser)]
#[command(name = "flowstone-guest", version, propagate_version = true, max_term_width = 100)]
pub struct Args {
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show the files of a folder at a mount point, and cache those that the policy selects, until
    /// SIGTERM
    ///
    /// Prints `serving MOUNT` when the files can be used there. The folder may be an NFS mount or
    /// any other. Consistency is close-to-open, as with NFS.
    Cache(Box<Cache>),
    /// Show the statistics of a cache
    Stats(Stats),
    /// Record each use of a file, for `flowstone-bench filecache`, until SIGINT or SIGTERM
    Record(Record),
    /// Drop the copies of a cache, or that of one file; an open copy is dropped when it is closed
    Drop(Drop),
}

/// Arguments of `cache`.
#[derive(Debug, ClapArgs)]
pub struct Cache {
    /// Folder on the shared storage whose files are shown
    #[arg(long, value_name = "DIR")]
    pub source: PathBuf,
    /// Mount point; may be the folder of --source
    #[arg(long, value_name = "DIR")]
    pub mount: PathBuf,
    /// Memory for copies
    #[arg(long, value_name = "SIZE", value_parser = parse_space, default_value = "256M",
          conflicts_with_all = ["dir", "size"])]
    pub memory: u64,
    /// Folder for copies, instead of memory; the next cache of this source reuses them
    #[arg(long, value_name = "DIR", requires = "size")]
    pub dir: Option<PathBuf>,
    /// Space for copies in the folder of --dir
    #[arg(long, value_name = "SIZE", value_parser = parse_space, requires = "dir")]
    pub size: Option<u64>,
    /// Folder for the history of file uses, from which files are prefetched after a restart;
    /// created if it is missing
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// Policy that selects the files to cache: default (files that have saved most time recently),
    /// multicache (the paper's rule) or lru
    #[arg(long, default_value = "default", value_parser = parse_policy)]
    pub policy: PolicyKind,
    /// Number of uses from which `multicache` keeps a file
    #[arg(long, value_name = "COUNT", default_value_t = 2)]
    pub usage_threshold: u32,
    /// Part of the memory to which `multicache` shrinks at each epoch
    #[arg(long, value_name = "PART", default_value_t = 0.9, value_parser = parse_part)]
    pub mem_threshold: f64,
    /// Time between two epochs
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_time)]
    pub epoch: Duration,
    /// Maximum age of cached names and attributes
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = parse_time)]
    pub window: Duration,
    /// Time for which a copy is opened without checking the source again; 0s: always check
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = parse_time)]
    pub trust: Duration,
    /// Handling of requests that need the source while it is down: wait, or fail (EIO)
    #[arg(long, value_name = "WHAT", default_value = "wait")]
    pub when_down: WhenDown,
    /// Time without an answer after which the source counts as down
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_timeout)]
    pub source_timeout: Duration,
    /// Maximum time and bytes of delayed writes, e.g. 5s,64M. fsync, close, unmount and SIGTERM
    /// write them to the source earlier; a crash loses writes that have not reached the source
    #[arg(long, value_name = "SECONDS,BYTES", value_parser = parse_write_back)]
    pub write_back: Option<(Duration, u64)>,
    /// Do not write back on close: others see a closed file only after the time of --write-back
    #[arg(long, requires = "write_back")]
    pub lazy_close: bool,
    /// Show the source's extended attributes, including ACLs and file capabilities. Without this
    /// option the mount has none, and `ls -l` sends no requests for them to this program
    #[arg(long)]
    pub xattrs: bool,
    /// Modes in which files may be opened: copy (the kernel reads the copy), source (the kernel
    /// reads and writes the source's file), plain (through this program; always allowed)
    #[arg(
        long,
        value_name = "MODE,...",
        value_delimiter = ',',
        default_value = "copy,source,plain"
    )]
    pub modes: Vec<OpenMode>,
    /// Device or socket to the host, which grants memory [default: the virtio port
    /// org.flowstone.guest.0, if there is one]
    #[arg(long, value_name = "PATH", conflicts_with = "dir")]
    pub agent: Option<PathBuf>,
}

/// A way to open files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OpenMode {
    /// The copy.
    Copy,
    /// The source's file.
    Source,
    /// Through the daemon.
    Plain,
}

/// Handling of requests while the source is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WhenDown {
    /// Wait until it is up.
    Wait,
    /// Fail.
    Fail,
}

/// Arguments of `stats`.
#[derive(Debug, ClapArgs)]
pub struct Stats {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Where the cache is mounted
    pub mount: PathBuf,
}

/// Arguments of `record`.
#[derive(Debug, ClapArgs)]
pub struct Record {
    /// Where the cache is mounted
    pub mount: PathBuf,
    /// File for the lines `r|w,FILE,BYTES`
    #[arg(long, value_name = "FILE")]
    pub output: PathBuf,
}

/// Arguments of `drop`.
#[derive(Debug, ClapArgs)]
pub struct Drop {
    /// Where the cache is mounted
    pub mount: PathBuf,
    /// File in it, by its full path or relative to the mount point
    pub file: Option<PathBuf>,
}

fn parse_policy(text: &str) -> Result<PolicyKind, String> {
    const OFFERED: [PolicyKind; 3] = [PolicyKind::Default, PolicyKind::Multicache, PolicyKind::Lru];
    let kind = text.parse::<PolicyKind>().ok().filter(|kind| OFFERED.contains(kind));
    kind.ok_or_else(|| "use one of default, multicache, lru".to_owned())
}

fn parse_write_back(text: &str) -> Result<(Duration, u64), String> {
    let wrong = || format!("{text:?} is no bound; write a time and a size, e.g. 5s,64M");
    let (time, bytes) = text.split_once(',').ok_or_else(wrong)?;
    let seconds = time.parse().ok().and_then(|it| Duration::try_from_secs_f64(it).ok());
    let time = seconds.map_or_else(|| parse_time(time), Ok)?;
    Ok((time, parse_space(bytes)?))
}

fn parse_timeout(text: &str) -> Result<Duration, String> {
    let timeout = parse_time(text)?;
    if timeout < TIMEOUT_MIN { Err("give 100ms or more".to_owned()) } else { Ok(timeout) }
}

fn parse_part(text: &str) -> Result<f64, String> {
    let part = text.parse().ok().filter(|part| (0.0..=1.0).contains(part));
    part.ok_or_else(|| "give a part of the whole, from 0 to 1".to_owned())
}
