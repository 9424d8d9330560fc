//! What can be typed. Each option says what it does here and nowhere else: `--help`, the man
//! pages and the completions are made from this module.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use flowstone_policy::PolicyKind;

use crate::units::{parse_size, parse_time};

/// Shortest timeout: a shorter silence is normal.
const TIMEOUT_MIN: Duration = Duration::from_millis(100);

/// A file cache in front of shared storage
///
/// Sizes take K, M, G or T (powers of 1024), e.g. 512M; times take s and ms, e.g. 3s. Exit status:
/// 0 done, 1 failed, 2 wrong usage.
#[derive(Debug, Parser)]
#[command(name = "flowstone-guest", version, propagate_version = true, max_term_width = 100)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show the files of a folder at another place, and keep copies of those that deserve it, until
    /// SIGTERM
    ///
    /// Prints `serving MOUNT` when the files can be used there. The folder is an NFS mount, or any
    /// other. Files are consistent from close to open, as NFS has it.
    Cache(Box<Cache>),
    /// Show what a cache has counted
    Stats(Stats),
    /// Write down each use of a file, for `flowstone-bench filecache`, until SIGINT or SIGTERM
    Record(Record),
    /// Drop the copies of a cache, or that of one file; a copy that is open goes when it is closed
    Drop(Drop),
}

/// Arguments of `cache`.
#[derive(Debug, ClapArgs)]
pub struct Cache {
    /// Folder whose files are shown: the shared storage
    #[arg(long, value_name = "DIR")]
    pub source: PathBuf,
    /// Folder at which they are shown; may be that of --source
    #[arg(long, value_name = "DIR")]
    pub mount: PathBuf,
    /// Memory for copies
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "256M",
          conflicts_with_all = ["dir", "size"])]
    pub memory: u64,
    /// Folder for copies, instead of memory; they are used again by the next cache of this source
    #[arg(long, value_name = "DIR", requires = "size")]
    pub dir: Option<PathBuf>,
    /// Space for copies in that folder
    #[arg(long, value_name = "SIZE", value_parser = parse_size, requires = "dir")]
    pub size: Option<u64>,
    /// Folder for the history of use, by which files are fetched ahead of their use after a
    /// restart; made if it is not there
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// Which files deserve a copy: default (what has saved most time of late), multicache (the
    /// paper's rule) or lru
    #[arg(long, default_value = "default", value_parser = parse_policy)]
    pub policy: PolicyKind,
    /// Uses from which on `multicache` keeps a file
    #[arg(long, value_name = "COUNT", default_value_t = 2)]
    pub usage_threshold: u32,
    /// Part of the memory to which `multicache` empties itself at each epoch
    #[arg(long, value_name = "PART", default_value_t = 0.9, value_parser = parse_part)]
    pub mem_threshold: f64,
    /// Time between two epochs
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_time)]
    pub epoch: Duration,
    /// How old names and attributes may be
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = parse_time)]
    pub window: Duration,
    /// For how long a copy is opened without another look at the source; 0s: never
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = parse_time)]
    pub trust: Duration,
    /// What is done with what only the source can answer while it is down: wait, or fail (EIO)
    #[arg(long, value_name = "WHAT", default_value = "wait")]
    pub when_down: WhenDown,
    /// The source is down when it has not answered for so long
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_timeout)]
    pub source_timeout: Duration,
    /// Keep writes back for so long, and so many bytes of them, e.g. 5s,64M. They reach the source
    /// earlier by fsync, close, unmount and SIGTERM; a crash loses those that have not
    #[arg(long, value_name = "SECONDS,BYTES", value_parser = parse_write_back)]
    pub write_back: Option<(Duration, u64)>,
    /// A close does not write back: others see a closed file only after the time of --write-back
    #[arg(long, requires = "write_back")]
    pub lazy_close: bool,
    /// Show extended attributes, if the source has any: ACLs and file capabilities among them.
    /// Without it there are none, and `ls -l` asks this program nothing for each file
    #[arg(long)]
    pub xattrs: bool,
    /// How files may be opened: copy (the kernel reads the copy), source (the kernel reads and
    /// writes the source's file), plain (through this program); the last one always may
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

/// What is done while the source is down.
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
    /// As JSON
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
    /// File in it, by its whole path or from the mount on
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
    Ok((time, parse_size(bytes)?))
}

fn parse_timeout(text: &str) -> Result<Duration, String> {
    let timeout = parse_time(text)?;
    if timeout < TIMEOUT_MIN { Err("give 100ms or more".to_owned()) } else { Ok(timeout) }
}

fn parse_part(text: &str) -> Result<f64, String> {
    let part = text.parse().ok().filter(|part| (0.0..=1.0).contains(part));
    part.ok_or_else(|| "give a part of the whole, from 0 to 1".to_owned())
}
