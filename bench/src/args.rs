//! Options of the comparison and of a single load, as parsed.

use std::path::PathBuf;

use clap::Args;

use crate::place::Place;
use crate::size::parse_size;

/// Options of the comparison.
#[derive(Clone, Debug, Args)]
pub struct CompareArgs {
    /// One round, one second per point: a check that everything runs, not a measurement.
    #[arg(long)]
    pub quick: bool,
    /// Rounds; each measures every point on every server once.
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
    /// Measured seconds per point.
    #[arg(long, default_value_t = 2.0)]
    pub runtime: f64,
    /// Maximum number of repetitions of a measurement while other processes use more than a tenth
    /// of the machine; the quietest sample counts.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub noise_retries: usize,
    /// Only points whose name contains this; may be given several times.
    #[arg(long, value_name = "PATTERN")]
    pub only: Vec<String>,
    /// Measure Flowstone alone.
    #[arg(long)]
    pub skip_peers: bool,
    /// Also measure qemu-storage-daemon with the export in an iothread, which polls.
    #[arg(long)]
    pub qsd_iothread: bool,
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
    /// Size of the images on tmpfs and in a cache.
    #[arg(long, default_value = "1G", value_parser = parse_size)]
    pub tmpfs_size: u64,
    /// Size of log images, and of the raw image beside them.
    #[arg(long, default_value = "2G", value_parser = parse_size)]
    pub log_size: u64,
    /// Further arguments for `flowstone serve`.
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    pub flowstone_arg: Vec<String>,
    #[command(flatten)]
    pub place: Place,
}

impl CompareArgs {
    /// Returns the options with `--quick` applied.
    pub fn resolved(mut self) -> Self {
        if self.quick {
            self.rounds = 1;
            self.runtime = 1.0;
        }
        self.rounds = self.rounds.max(1);
        self
    }
}

/// Options of a single workload.
#[derive(Debug, Args)]
pub struct LoadArgs {
    /// The backend's socket.
    #[arg(long)]
    pub socket: PathBuf,
    /// read, write, rw, randread, randwrite, randrw, discard, randdiscard or mix.
    #[arg(long, default_value = "randread")]
    pub rw: String,
    /// Request size.
    #[arg(long, default_value = "4k", value_parser = parse_size)]
    pub bs: u64,
    /// Requests in flight per queue.
    #[arg(long, default_value_t = 1)]
    pub iodepth: u16,
    /// Requests per second and queue, sent when they are due [default: sent when an earlier one
    /// completes].
    #[arg(long)]
    pub rate: Option<f64>,
    /// Queues.
    #[arg(long, default_value_t = 1)]
    pub queues: usize,
    /// Client threads (0: one per queue).
    #[arg(long, default_value_t = 0)]
    pub threads: usize,
    /// CPUs of the client threads.
    #[arg(long, value_delimiter = ',')]
    pub cpus: Vec<usize>,
    /// Sleep on the call eventfd instead of polling.
    #[arg(long)]
    pub eventfd: bool,
    /// Measured seconds.
    #[arg(long, default_value_t = 2.0)]
    pub runtime: f64,
    /// Seconds before measuring.
    #[arg(long, default_value_t = 0.25)]
    pub ramp: f64,
    /// Stop after this many requests instead.
    #[arg(long)]
    pub ops: Option<u64>,
    /// Number of writes after which a flush is sent.
    #[arg(long, default_value_t = 0)]
    pub flush_every: u64,
    /// Size of the part of the disk to use.
    #[arg(long, default_value = "0", value_parser = parse_size)]
    pub size: u64,
    /// Write a pattern, verify every read, and read all data again at the end.
    #[arg(long)]
    pub verify: bool,
    /// Charge this process's CPU time to the requests.
    #[arg(long)]
    pub server_pid: Option<u32>,
    /// Descriptors per queue.
    #[arg(long, default_value_t = 128)]
    pub queue_size: u16,
    /// Do not negotiate EVENT_IDX.
    #[arg(long)]
    pub no_event_idx: bool,
    /// Do not use indirect descriptors.
    #[arg(long)]
    pub no_indirect: bool,
    /// Negotiate neither FLUSH nor CONFIG_WCE: every write is durable when it completes.
    #[arg(long)]
    pub write_through: bool,
    /// Do not use the in-flight region.
    #[arg(long)]
    pub no_inflight: bool,
    /// Seconds to wait for another backend when the backend dies.
    #[arg(long)]
    pub reconnect: Option<f64>,
    /// Seed of all random choices.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}
