//! The daemon's configuration: one disk from the command line, or several from a TOML file.
//!
//! ```toml
//! control = "/run/flowstone/control.sock"
//!
//! [[disk]]
//! name = "vm1"
//! image = "/var/lib/flowstone/vm1.raw"
//! socket = "/run/flowstone/vm1.sock"
//! ```
//! Keys have the names of the `serve` options, with hyphens or underscores, and are parsed by the
//! same code: each option is declared once, with its help, in the structure of its stage. An
//! unknown key is an error, since a misspelt one would silently have no effect.

#![allow(rustdoc::broken_intra_doc_links, reason = "in help, brackets mean optional")]

mod file;
mod groups;
mod label;
mod table;
mod vm;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{Args, value_parser};
use flowstone_block::{Error, Result};
use flowstone_control::Address;
use flowstone_runner::{CpuList, CpuShare, Pipeline, PollMode, PollersConfig};
use toml::{Table, Value};

pub use self::groups::{Groups, limit_of_group};
use self::label::check_label;
pub use self::table::{Keys, key_of, keys_of, table_of, typed_disk};
pub use self::vm::VmSpec;
use crate::families::MetricsBuckets;
use crate::stack::{SharedArgs, StackArgs};
use crate::{SocketAccess, SocketGroup, SocketMode};

/// Length of the serial number that a guest reads (virtio 1.2, 5.2.6: the device's identity).
const SERIAL_BYTES_MAX: usize = 20;
/// Longest name of a disk or group: room for a UUID and more; names appear in many lines.
const NAME_BYTES_MAX: usize = 128;

/// Everything that one daemon serves. Each disk is valid by itself and together with the others.
#[derive(Debug, Default)]
pub struct Config {
    /// Settings that belong to no disk.
    pub daemon: DaemonConfig,
    /// Limits shared by disks.
    pub groups: Groups,
    /// The disks.
    pub disks: Vec<DiskConfig>,
    /// Errors of the disks in the file that were refused.
    pub refused: Vec<Error>,
    /// Tables of the refused disks.
    pub refused_tables: Vec<Table>,
    /// The path it was read from, and the command-line options that override its keys.
    pub source: Option<(PathBuf, Vec<OsString>)>,
}

/// Options of `serve` that belong to no disk: keys before the first `[[disk]]`.
#[derive(Clone, Debug, Default, Args)]
pub struct DaemonConfig {
    /// Control socket, for `stats`, `resize`, `disk`, `group` and other commands [default:
    /// FLOWSTONE_CONTROL, else /run/flowstone/control.sock if that folder exists]
    #[arg(long, value_name = "SOCK")]
    pub control: Option<PathBuf>,
    /// Access to that socket.
    #[command(flatten)]
    pub control_access: ControlAccess,
    /// Address that answers GET /metrics only: ADDRESS:PORT or unix:PATH
    #[arg(long, value_name = "ADDRESS")]
    pub metrics_listen: Option<Address>,
    /// Resolution of the histograms of durations in GET /metrics, on --metrics-listen and on the
    /// control socket
    #[arg(long, value_name = "HOW", value_enum, default_value_t)]
    pub metrics_buckets: MetricsBuckets,
    /// Folder that keeps changes made on the control socket (disks and groups added, set and
    /// removed) over a restart. With it the daemon may start without disks, and a disk that fails
    /// does not end the daemon
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Socket on which the daemon grants memory to the file caches of guests: each QEMU connects a
    /// virtio port `org.flowstone.guest.0` to it
    #[arg(long, value_name = "SOCK")]
    pub guest_agent: Option<PathBuf>,
    /// Options that disks share.
    #[command(flatten)]
    pub shared: SharedArgs,
    /// The threads that run queues.
    #[command(flatten)]
    pub pollers: PollersConfig,
    /// Access to the agents' socket, and to those of disks without settings of their own.
    #[command(flatten)]
    pub access: SocketAccess,
}

/// Access to the control socket, which gives full control of all disks.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct ControlAccess {
    /// Group of the control socket, by name or number [default: only its owner may use it]
    #[arg(long = "control-group", id = "control_group", value_name = "GROUP")]
    group: Option<SocketGroup>,
    /// Mode of the control socket, in octal [default: 0660 with --control-group, else 0600]
    #[arg(long = "control-mode", id = "control_mode", value_name = "MODE")]
    mode: Option<SocketMode>,
}

impl ControlAccess {
    /// Converts to the access of any socket.
    pub fn of_socket(self) -> SocketAccess {
        match self {
            Self { group: None, mode: None } => SocketAccess::OWNER,
            Self { group, mode } => SocketAccess { group, mode },
        }
    }
}

/// One disk: options of `serve`, and keys of a `[[disk]]`.
#[derive(Clone, Debug, Args)]
pub struct DiskConfig {
    /// Name of the disk in messages, statistics and commands; at most 128 bytes [default: from
    /// IMAGE]
    #[arg(long)]
    name: Option<String>,
    /// Serial number of the disk in the guest; at most 20 bytes [default: the name, truncated to
    /// that length]
    #[arg(long)]
    serial: Option<String>,
    /// Socket on which the disk listens for the virtual machine monitor
    #[arg(long, value_name = "PATH")]
    pub socket: PathBuf,
    /// Maximum number of queues of the guest
    // vhost-user numbers rings with eight bits, of which crate `vhost` leaves fewer. A queue costs
    // nothing before it is used.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = value_parser!(u16).range(1..=128))]
    pub queues: u16,
    /// Give each queue a thread of its own, whatever --pollers says, pinned to these CPUs in turn:
    /// 2-5 or 0,3
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<CpuList>,
    /// Form of a queue: whether it runs on one thread or two
    #[arg(long, value_name = "FORM", value_enum, default_value_t)]
    pub pipeline: Pipeline,
    /// Polling for work by an idle queue, instead of sleeping
    #[arg(long, value_name = "MODE", value_enum, default_value_t)]
    pub poll: PollMode,
    /// Its stages.
    #[command(flatten)]
    pub stack: StackArgs,
    /// The VM that uses the disk, for its share of the cache and of devices: name=NAME (disks with
    /// the same name belong to one VM), cpus=N, memory=SIZE, and weight=N for device shares,
    /// separated by commas [default: discovered from the process that connects; the weight is 100
    /// for a vCPU with 1 GiB]
    #[arg(long, value_name = "PARTS")]
    pub vm: Option<VmSpec>,
    /// Options that it has beside other disks only.
    #[arg(skip)]
    pub beside: BesideOthers,
    /// Its keys as they were written, if it was not typed.
    #[arg(skip)]
    pub keys: Keys,
}

/// Keys of a `[[disk]]` that `serve` has for all disks or does not need.
#[derive(Clone, Debug, Default, Args)]
pub struct BesideOthers {
    /// The [[group]] whose limit it shares
    #[arg(long)]
    pub group: Option<String>,
    /// Maximum CPU time of the disk's queues, e.g. 50% (of one CPU) or 150% [default: no limit]
    #[arg(long, value_name = "PERCENT")]
    pub cpu_budget: Option<CpuShare>,
    /// Access to its socket.
    #[command(flatten)]
    pub access: SocketAccess,
}

/// All keys of a `[[disk]]`.
#[derive(Debug, Args)]
pub struct DiskTable {
    #[command(flatten)]
    disk: DiskConfig,
    #[command(flatten)]
    beside: BesideOthers,
}

/// Why a disk is refused, and advice.
struct Refusal {
    why: String,
    advice: String,
}

impl Refusal {
    fn new(why: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { why: why.into(), advice: advice.into() }
    }

    fn of(self, what: &str) -> Error {
        Error::invalid(what, self.why, self.advice)
    }
}

impl Config {
    /// Makes a configuration of one disk, or of none but those added to the daemon before.
    pub fn typed(daemon: DaemonConfig, disk: Option<DiskConfig>) -> Result<Self> {
        let config = Self::without_disks(daemon).and_then(|mut config| {
            disk.map_or(Ok(()), |disk| config.add(disk))?;
            Ok(config)
        });
        // The name itself may be what is refused.
        config.map_err(|refusal| refusal.of("serve"))
    }

    fn without_disks(daemon: DaemonConfig) -> std::result::Result<Self, Refusal> {
        daemon.check().map_err(|(why, advice)| Refusal::new(why, advice))?;
        Ok(Self { daemon, ..Self::default() })
    }

    /// Returns whether a disk of this name, or with the socket of these keys, was refused.
    pub fn refuses(&self, name: &str, keys: &Keys) -> bool {
        let socket = keys.get("socket").map(|values| values.join(","));
        self.refused_tables.iter().any(|table| {
            let says = |key| table.get(key).and_then(Value::as_str);
            says("name") == Some(name)
                || says("socket").is_some_and(|it| socket.as_deref() == Some(it))
        })
    }

    /// Adds a disk, which must be valid and share no name or socket with others.
    fn add(&mut self, mut disk: DiskConfig) -> std::result::Result<(), Refusal> {
        self.daemon.fit(&mut disk)?;
        let taken = |why: String| Err(Refusal::new(why, "choose another one"));
        let (name, path) = (disk.name(), disk.socket.display());
        if self.disks.iter().any(|other| other.name() == name) {
            let why = format!("two disks are called `{name}`");
            return Err(Refusal::new(why, "give each a `name` of its own"));
        }
        if self.disks.iter().any(|other| other.socket == disk.socket) {
            return taken(format!("two disks share the socket {path}"));
        }
        if let Some(group) = &disk.beside.group
            && !self.groups.has(group)
        {
            let why = format!("there is no [[group]] called `{group}`");
            return Err(Refusal::new(why, "add it, or leave `group` out"));
        }
        self.disks.push(disk);
        Ok(())
    }
}

impl DaemonConfig {
    /// Checks for settings that exclude each other. Returns the reason and advice.
    pub fn check(&self) -> std::result::Result<(), (&'static str, &'static str)> {
        self.pollers.check()?;
        self.shared.check()
    }

    /// Checks a disk against this daemon, regardless of other disks, and fills in defaults.
    fn fit(&self, disk: &mut DiskConfig) -> std::result::Result<(), Refusal> {
        disk.check()?;
        disk.beside.access = disk.beside.access.or(self.access);
        let taken = |other: &str| {
            let path = disk.socket.display();
            let why = format!("{path} is both a disk's socket and {other}");
            Err(Refusal::new(why, "choose another one"))
        };
        if self.control.as_ref() == Some(&disk.socket) {
            return taken("the control socket");
        }
        if self.guest_agent.as_ref() == Some(&disk.socket) {
            return taken("that of guests' agents");
        }
        Ok(())
    }

    /// Reads the disk called `name` from a request with the keys of a `[[disk]]`.
    pub fn disk(&self, name: &str, mut table: Table) -> Result<DiskConfig> {
        let what = format!("disk {name}");
        let mut read = || {
            table::call(&mut table, name, "disk")?;
            let mut disk = DiskConfig::read(&table)?;
            table::refuse_relative::<DiskTable>(&disk.keys)?;
            self.fit(&mut disk)?;
            Ok(disk)
        };
        read().map_err(|refusal: Refusal| refusal.of(&what))
    }
}

impl DiskConfig {
    /// Reads a `[[disk]]`.
    fn read(table: &Table) -> std::result::Result<Self, Refusal> {
        let (DiskTable { disk, beside }, keys) = table::read(table, &[])?;
        Ok(Self { beside, keys, ..disk })
    }

    /// Returns the name for messages and statistics; by default the image's file name, cut to the
    /// longest name allowed.
    pub fn name(&self) -> String {
        if let Some(name) = &self.name {
            return name.clone();
        }
        let stem = self.stack.image.as_deref().and_then(Path::file_stem).unwrap_or("disk".as_ref());
        let mut name = stem.to_string_lossy().replace(char::is_control, "_");
        name.truncate(name.floor_char_boundary(NAME_BYTES_MAX));
        name
    }

    /// Returns the serial number that the guest reads.
    pub fn serial(&self) -> String {
        self.serial.clone().unwrap_or_else(|| {
            let name = self.name();
            name[..name.floor_char_boundary(SERIAL_BYTES_MAX)].to_owned()
        })
    }

    /// Checks the disk's own settings, regardless of other disks.
    fn check(&self) -> std::result::Result<(), Refusal> {
        let unfit = |why| Refusal::new(why, "choose another one");
        check_label("name", "disk", &self.name(), NAME_BYTES_MAX).map_err(unfit)?;
        check_label("serial", "disk", &self.serial(), SERIAL_BYTES_MAX).map_err(unfit)?;
        self.stack.check().map_err(|(why, advice)| Refusal::new(why, advice))
    }

    /// Makes a disk with defaults only.
    #[cfg(test)]
    pub fn new(name: &str, socket: &Path) -> Self {
        use clap::FromArgMatches;
        let words = [format!("--name={name}"), format!("--socket={}", socket.display())];
        let matches = keys_of::<Self>().get_matches_from(words);
        Self::from_arg_matches(&matches).unwrap()
    }
}

#[cfg(test)]
mod tests;
