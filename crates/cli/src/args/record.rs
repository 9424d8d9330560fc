//! `flowstone record`

use std::path::PathBuf;

use clap::Args as ClapArgs;

use super::Daemon;

/// Arguments of `record`.
#[derive(Debug, ClapArgs)]
pub struct Record {
    /// The daemon.
    #[command(flatten)]
    pub daemon: Daemon,
    /// The file to make, which must not exist: CSV, compressed with zstd, for its owner alone
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// For how long [default: until SIGINT or SIGTERM]
    #[arg(long, value_name = "N")]
    pub seconds: Option<u64>,
    /// Round times down to a millisecond: they tell less of what the guest does
    #[arg(long)]
    pub coarse: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// The disk's name or image
    pub disk: PathBuf,
}
