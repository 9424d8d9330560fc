//! `flowstone record`

use std::path::PathBuf;

use clap::Args as ClapArgs;

use super::Query;

/// Arguments of `record`.
#[derive(Debug, ClapArgs)]
pub struct Record {
    /// The daemon, and the form of the totals.
    #[command(flatten)]
    pub query: Query,
    /// File to create, which must not exist: CSV, compressed with zstd, readable by its owner only
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Duration in seconds [default: until SIGINT or SIGTERM]
    #[arg(long, value_name = "N")]
    pub seconds: Option<u64>,
    /// Round times down to a millisecond, which reveals less of the guest's activity
    #[arg(long)]
    pub coarse: bool,
    /// The disk's name or image
    pub disk: PathBuf,
}
