//! What `flowstone serve` takes.

use std::path::PathBuf;

use clap::{ArgGroup, Args as ClapArgs};
use flowstone_block::{Error, Result};
use flowstone_daemon::{
    Backend, CacheConfig, CacheSize, Choice, CpuList, CpuShare, DetectZeroes, LayerSpec, Limit,
    Pdc, Pipeline, PolicyKind, PollMode, PollerChoice, Resort, SocketGroup, SocketMode, VmSpec,
};
use flowstone_fileio::{DirectChoice, EngineChoice};
use flowstone_image::{DiscardMode, Format};

/// What a disk's image, and a cache before it, do: of `serve`, and of `replay` too.
#[derive(Debug, Default, ClapArgs)]
pub struct StorageArgs {
    /// What discards do: deallocate (the host gets the space back), keep (a raw file stays
    /// allocated, and reads as zeroes there) or ignore (not offered)
    #[arg(long, value_name = "MODE")]
    pub discard: Option<DiscardMode>,
    /// Keep blocks in memory that are read again, of all disks of the daemon together: SIZE is the
    /// most that they may take [default: no cache]
    #[arg(long, value_name = "SIZE")]
    pub cache: Option<CacheSize>,
    /// What decides which blocks are kept: default, s3fifo, lru, multicache or multicache-relative
    #[arg(long, value_name = "NAME", requires = "cache")]
    pub cache_policy: Option<PolicyKind>,
    /// Keep the guest's journals out of the cache and, with --direct off, out of the host's page
    /// cache: on, or off (treat them like everything else) [default: on]
    #[arg(long, value_name = "CHOICE")]
    pub pdc: Option<Pdc>,
    /// How requests reach the host file: auto, uring or sync (threads)
    #[arg(long)]
    pub engine: Option<Choice<EngineChoice>>,
    /// Bypass the host's page cache: auto (where the file system can), on or off
    #[arg(long, value_name = "CHOICE")]
    pub direct: Option<Choice<DirectChoice>>,
    /// What a log image may write in a day, in bytes, to put blocks in the order of their LBAs
    /// while guests are idle, or off [default: a tenth of the disk]
    #[arg(long, value_name = "SIZE_PER_DAY|off")]
    pub resort: Option<Resort>,
}

impl StorageArgs {
    /// A cache, if there is to be one, that becomes no smaller than `min`.
    pub fn cache(&self, min: Option<CacheSize>) -> Result<Option<CacheConfig>> {
        let policy = self.cache_policy.unwrap_or_default();
        let cache = self.cache.map(|size| CacheConfig::new(size, min, policy)).transpose();
        cache.map_err(|why| Error::invalid("cache", why, "use a smaller --cache-min"))
    }
}

/// Arguments of `serve`.
#[derive(Debug, ClapArgs)]
#[command(group(ArgGroup::new("what").required(true).multiple(false)
    .args(["config", "image", "backend"])))]
pub struct Serve {
    /// Serve the disks of this file; flowstone.toml(5) lists its keys
    #[arg(long, value_name = "FILE", conflicts_with_all = ["socket", "socket_group", "socket_mode",
        "name", "serial", "format", "queues", "cpus", "pollers", "poller_cpus", "cpu_budget", "pipeline", "poll", "discard", "detect_zeroes", "journal_ioprio", "cache", "cache_min", "cache_policy", "pdc", "limit", "vm", "engine", "direct", "resort",
        "readonly", "backing_dirs", "layers", "control", "guest_agent"])]
    pub config: Option<PathBuf>,
    /// Listen for the virtual machine monitor here
    #[arg(long, value_name = "PATH", required_unless_present = "config")]
    pub socket: Option<PathBuf>,
    /// Group of the socket, by name or number: libvirt's QEMU is another user, who must be in it
    /// [default: that of the daemon]
    #[arg(long, value_name = "GROUP")]
    pub socket_group: Option<SocketGroup>,
    /// Mode of the socket, in octal; who may write it may connect [default: 0660 with
    /// --socket-group, else 0777 less the umask]
    #[arg(long, value_name = "MODE")]
    pub socket_mode: Option<SocketMode>,
    /// Name of the disk in messages, statistics and commands; at most 128 bytes [default: from
    /// IMAGE]
    #[arg(long)]
    pub name: Option<String>,
    /// Serial number of the disk in the guest; at most 20 bytes [default: the name, or as much of
    /// it as there is room for]
    #[arg(long)]
    pub serial: Option<String>,
    /// Image format, raw, qcow2 or log, if the file's name does not tell
    #[arg(short, long)]
    pub format: Option<Format>,
    /// Most queues the guest may use [default: 64]
    #[arg(long, value_name = "N")]
    pub queues: Option<u16>,
    /// Pin queue threads to these CPUs in turn, e.g. 2-5 or 0,3; not with shared pollers
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<CpuList>,
    /// Which threads run queues: per-queue (one for each), N (so many for all queues; these move
    /// between them by load), auto (as many as the load asks for) [default: per-queue]
    #[arg(long, value_name = "N|auto|per-queue")]
    pub pollers: Option<PollerChoice>,
    /// Pin shared pollers to these CPUs in turn; with --pollers auto there are as many at most
    #[arg(long, value_name = "LIST", requires = "pollers")]
    pub poller_cpus: Option<CpuList>,
    /// The most CPU time that the daemon may use, e.g. 50% of one CPU, or 150% [default: no limit]
    #[arg(long, value_name = "PERCENT")]
    pub cpu_budget: Option<CpuShare>,
    /// How many threads a queue runs on: fused (one does everything), split (one takes requests
    /// from the guest, the other one submits and completes them) or auto (the one that does more,
    /// measured while it runs) [default: fused]
    #[arg(long, value_name = "FORM")]
    pub pipeline: Option<Pipeline>,
    /// Look for work instead of sleeping: auto (while it pays), always (burns a core), never
    #[arg(long, value_name = "MODE")]
    pub poll: Option<PollMode>,
    /// What the image and the cache do.
    #[command(flatten)]
    pub storage: StorageArgs,
    /// What becomes of writes that are all zero: off (written), on (made zero without moving
    /// data), unmap (the host gets their space back, too) [default: off]
    #[arg(long, value_name = "MODE")]
    pub detect_zeroes: Option<DetectZeroes>,
    /// Best-effort priority level, 0 to 7, of the guest's ext4 journal (its mount option
    /// `journal_ioprio`), by which writes to it are known on encrypted disks [default: 3]
    #[arg(long, value_name = "LEVEL")]
    pub journal_ioprio: Option<u8>,
    /// What the cache takes at least: when the host's memory runs short, it becomes smaller
    /// [default: an eighth of --cache]
    #[arg(long, value_name = "SIZE", requires = "cache")]
    pub cache_min: Option<CacheSize>,
    /// What the disk may use in a second: iops=N requests and bw=SIZE bytes, and with burst=TIME as
    /// much of what it has not used as comes in that time; separated by commas, or off [default:
    /// off]
    #[arg(long, value_name = "PARTS")]
    pub limit: Option<Limit>,
    /// The VM that uses the disk, for its share of the cache: name=NAME (disks with the same one
    /// belong to one VM), cpus=N, memory=SIZE, separated by commas [default: found out from the
    /// process that connects]
    #[arg(long, value_name = "PARTS")]
    pub vm: Option<VmSpec>,
    /// Refuse writes; several daemons may serve the same image this way
    #[arg(long)]
    pub readonly: bool,
    /// Follow backing files into this directory too, besides that of the image; repeat for several
    #[arg(long = "backing-dir", value_name = "DIR")]
    pub backing_dirs: Vec<PathBuf>,
    /// Put a diagnosis layer on top: delay=2ms, delay=0-5ms (random, completes out of order),
    /// error=OP[:ERRNO[:EVERY]], log=PATH, stats, verify; repeat for several
    #[arg(long = "layer", value_name = "LAYER")]
    pub layers: Vec<LayerSpec>,
    /// Answer `stats`, `resize`, `disk` and `group` here
    #[arg(long, value_name = "SOCK")]
    pub control: Option<PathBuf>,
    /// Agree with the file caches of guests on memory here: each QEMU connects a virtio port
    /// `org.flowstone.guest.0` to it
    #[arg(long, value_name = "SOCK")]
    pub guest_agent: Option<PathBuf>,
    /// Instead of an image: null:SIZE (does nothing) or mem:SIZE (lost with the daemon)
    #[arg(long)]
    pub backend: Option<Backend>,
    /// The image file or block device
    pub image: Option<PathBuf>,
}
