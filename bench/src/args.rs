//! Options of the comparison, as parsed.

use std::path::PathBuf;

use clap::Args;

use crate::run::{Base, defaults};

/// Size of the images on tmpfs and in a cache.
pub const MEMORY_BYTES: u64 = 1 << 30;
/// Size of log images, and of the raw image beside them.
pub const LOG_BYTES: u64 = 2 << 30;

/// Options of the comparison.
#[derive(Clone, Debug, Args)]
#[command(mut_args(defaults(&[("rounds", "3"), ("runtime", "2"), ("size", "8G")])))]
#[command(mut_arg("size", |size| size.long("file-size").help("Size of the disk image")))]
pub struct CompareArgs {
    /// Only points whose name contains this; may be given several times.
    #[arg(long, value_name = "PATTERN")]
    pub only: Vec<String>,
    /// Measure on this block device instead of an image on a file system; all data on the device is
    /// lost.
    #[arg(long, conflicts_with_all = ["dir", "size"])]
    pub device: Option<PathBuf>,
    #[command(flatten)]
    pub base: Base,
}
