//! Options of the comparison, as parsed.

use std::path::PathBuf;

use clap::Args;
use flowstone_block::parse_size;

use crate::place::Place;

/// Size of the images on tmpfs and in a cache.
pub const MEMORY_BYTES: u64 = 1 << 30;
/// Size of log images, and of the raw image beside them.
pub const LOG_BYTES: u64 = 2 << 30;

/// Options of the comparison.
#[derive(Clone, Debug, Args)]
pub struct CompareArgs {
    /// Rounds; each measures every point on every server once.
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
    /// Measured seconds per point.
    #[arg(long, default_value_t = 2.0)]
    pub runtime: f64,
    /// Only points whose name contains this; may be given several times.
    #[arg(long, value_name = "PATTERN")]
    pub only: Vec<String>,
    /// Write all results as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Rewrite the tables between the bench markers of this file.
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// Rewrite the table between the first-screen markers of this file, from the same run.
    #[arg(long, value_name = "FILE")]
    pub readme: Option<PathBuf>,
    /// Directory of the disk image, on the file system to be measured [default: beside the
    /// build].
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// Measure on this block device instead of an image on a file system; all data on the device is
    /// lost.
    #[arg(long, conflicts_with_all = ["dir", "file_size"])]
    pub device: Option<PathBuf>,
    /// Size of the disk image.
    #[arg(long, default_value = "8G", value_parser = parse_size)]
    pub file_size: u64,
    #[command(flatten)]
    pub place: Place,
}
