//! What is to be served: one disk from the command line, or several from a TOML file.
//!
//! ```toml
//! control = "/run/flowstone/control.sock"
//!
//! [[disk]]
//! name = "vm1"
//! image = "/var/lib/flowstone/vm1.raw"
//! socket = "/run/flowstone/vm1.sock"
//! ```
//! Keys have the names of the `serve` options, with hyphens or underscores; a key that is not known
//! is an error, since a misspelt one would silently not do what it says. flowstone.toml(5) lists
//! them: it is made from these structures and the help of `serve`.

mod choices;
mod file;
pub mod keys;
mod label;
mod source;
mod text;
mod vm;

use std::path::{Path, PathBuf};

use flowstone_block::{Error, Result};
use flowstone_fileio::{DirectChoice, EngineChoice};
use flowstone_image::{DiscardMode, Format};
use serde::Deserialize;

pub use self::choices::{Backend, Choice, Pdc, Pipeline, PollMode, Resort};
use self::file::ConfigFile;
use self::label::check_label;
pub use self::source::Source;
use self::text::{one_line, optional_text, text_or_default, texts};
pub use self::vm::VmSpec;
use crate::cache_config::CacheConfig;
use crate::layer_spec::{DetectZeroes, LayerSpec};
use crate::pollers::PollersConfig;
use crate::qos_config::{GroupConfig, GroupTable, Limit, Weight, weight};
use crate::{CpuList, CpuShare, SocketAccess, SocketGroup, SocketMode};

/// Queues that a guest may use unless told otherwise; a queue costs nothing before it is used.
pub const QUEUES_DEFAULT: u16 = 64;
/// The vhost-user protocol numbers rings with eight bits, of which crate `vhost` leaves fewer.
pub const QUEUES_MAX: u16 = 128;
/// The level at which the journal of ext4 writes, unless it is mounted with another
/// `journal_ioprio`.
pub const JOURNAL_IOPRIO_DEFAULT: u8 = 3;
/// Linux has eight levels.
pub const JOURNAL_IOPRIO_MAX: u8 = 7;
const QUEUES_ADVICE: &str = "use 1 to 128 queues";
/// A guest reads this much of a serial number (virtio 1.2, 5.2.6: the device's identity).
const SERIAL_BYTES_MAX: usize = 20;
/// Room for a UUID and more; a name is part of many lines.
const NAME_BYTES_MAX: usize = 128;

/// Everything one daemon serves. Each disk in it is valid by itself and beside the others.
#[derive(Debug, Default)]
pub struct Config {
    /// Where the control socket goes; none without it.
    pub control: Option<PathBuf>,
    /// Where the file caches of guests connect, and who may; nowhere without it.
    pub guest_agent: Option<(PathBuf, SocketAccess)>,
    /// The cache that all disks share; none without it.
    pub cache: Option<CacheConfig>,
    /// The threads that run queues.
    pub pollers: PollersConfig,
    /// What disks may use together.
    pub groups: Vec<GroupConfig>,
    /// The disks.
    pub disks: Vec<DiskConfig>,
    /// Why some disks of the file are not among them.
    pub refused: Vec<Error>,
}

/// One disk.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskConfig {
    /// What messages and statistics call it.
    pub name: String,
    /// What the guest reads as its serial number; else as much of the name as that can hold.
    pub serial: Option<String>,
    /// The image file or block device.
    pub image: Option<PathBuf>,
    /// Instead of an image: `null:SIZE` or `mem:SIZE`.
    #[serde(default, deserialize_with = "optional_text")]
    pub backend: Option<Backend>,
    /// The vhost-user socket.
    pub socket: PathBuf,
    /// The group that the socket belongs to.
    #[serde(default, deserialize_with = "optional_text", rename = "socket-group")]
    #[serde(alias = "socket_group")]
    pub socket_group: Option<SocketGroup>,
    /// Who may connect to the socket.
    #[serde(default, deserialize_with = "optional_text", rename = "socket-mode")]
    #[serde(alias = "socket_mode")]
    pub socket_mode: Option<SocketMode>,
    /// Image format, if the file's name does not tell.
    #[serde(default, deserialize_with = "optional_text")]
    pub format: Option<Format>,
    /// Most queues a guest may use.
    #[serde(default = "queues_default")]
    pub queues: u16,
    /// CPUs that its queues' threads are pinned to, in turn, where each queue has a thread of its
    /// own.
    #[serde(default, deserialize_with = "text_or_default")]
    pub cpus: CpuList,
    /// What its queues may use of the CPUs.
    #[serde(default, deserialize_with = "optional_text", rename = "cpu-budget")]
    #[serde(alias = "cpu_budget")]
    pub cpu_budget: Option<CpuShare>,
    /// How many threads a queue runs on.
    #[serde(default, deserialize_with = "text_or_default")]
    pub pipeline: Pipeline,
    /// When to look for work instead of sleeping.
    #[serde(default, deserialize_with = "text_or_default")]
    pub poll: PollMode,
    /// What discards do.
    #[serde(default, deserialize_with = "text_or_default")]
    pub discard: DiscardMode,
    /// What becomes of writes that are all zero.
    #[serde(default, deserialize_with = "text_or_default", rename = "detect-zeroes")]
    #[serde(alias = "detect_zeroes")]
    pub detect_zeroes: DetectZeroes,
    /// The best-effort level of the guest's journal, for disks whose structures cannot be read.
    #[serde(default = "journal_ioprio_default", rename = "journal-ioprio")]
    #[serde(alias = "journal_ioprio")]
    pub journal_ioprio: u8,
    /// Whether its journals are kept out of caches.
    #[serde(default, deserialize_with = "text_or_default")]
    pub pdc: Pdc,
    /// What it may use in a second.
    #[serde(default, deserialize_with = "text_or_default")]
    pub limit: Limit,
    /// The group that it shares a limit with.
    pub group: Option<String>,
    /// How much it gets of what disks share, beside others.
    #[serde(default, deserialize_with = "weight")]
    pub weight: Weight,
    /// The VM that uses it, where that is not to be found out.
    #[serde(default, deserialize_with = "text_or_default")]
    pub vm: VmSpec,
    /// How requests reach the host file.
    #[serde(default, deserialize_with = "text_or_default")]
    pub engine: Choice<EngineChoice>,
    /// Whether to bypass the host's page cache.
    #[serde(default, deserialize_with = "text_or_default")]
    pub direct: Choice<DirectChoice>,
    /// What a log image may write in a day to put blocks in order while guests are idle.
    #[serde(default, deserialize_with = "text_or_default")]
    pub resort: Resort,
    /// Refuse writes.
    #[serde(default)]
    pub readonly: bool,
    /// Where backing files may be, besides the directory of the image that names them.
    #[serde(default, rename = "backing-dirs", alias = "backing_dirs")]
    pub backing_dirs: Vec<PathBuf>,
    /// Diagnosis layers, from the lowest up.
    #[serde(default, deserialize_with = "texts")]
    pub layers: Vec<LayerSpec>,
}

/// Why there cannot be such a disk, and what to do.
struct Refusal {
    why: String,
    advice: &'static str,
}

impl Config {
    /// Reads a configuration file. A disk that is not valid is among the refused; if none is valid,
    /// that is an error.
    pub fn read(path: &Path) -> Result<Self> {
        let name = format!("configuration {}", path.display());
        let text = std::fs::read_to_string(path)
            .map_err(|error| Error::invalid(&name, error, "check the path"))?;
        let file: ConfigFile = toml::from_str(&text).map_err(|error| {
            let why = one_line(&error.to_string());
            Error::invalid(&name, why, "see `man flowstone.toml` for the keys")
        })?;
        let cache =
            file.cache().map_err(|Refusal { why, advice }| Error::invalid(&name, why, advice))?;
        let pollers = file.pollers();
        let (control, guest_agent) = (file.control.clone(), file.guest_agent());
        let mut config = Self { control, guest_agent, cache, pollers, ..Self::default() };
        for group in &file.groups {
            let added = config.add_group(group);
            added.map_err(|why| Error::invalid(&name, why, "correct the [[group]]"))?;
        }
        for (index, table) in file.disks.iter().enumerate() {
            let line = text[..table.span().start].matches('\n').count() + 1;
            let added = file.disk(table).and_then(|disk| config.add(disk));
            if let Err(Refusal { why, advice }) = added {
                let why = format!("disk {} (line {line}): {why}", index + 1);
                config.refused.push(Error::invalid(&name, why, advice));
            }
        }
        if !config.disks.is_empty() {
            return Ok(config);
        }
        let no_disk = || Error::invalid(&name, "it has no [[disk]]", "add one");
        Err(config.refused.into_iter().next().unwrap_or_else(no_disk))
    }

    /// One disk, beside what is not of a disk.
    pub fn single(shared: Self, disk: DiskConfig) -> Result<Self> {
        let mut config = shared;
        // Its name may be what is refused.
        config.add(disk).map_err(|Refusal { why, advice }| Error::invalid("serve", why, advice))?;
        Ok(config)
    }

    /// One more disk, which must be valid and have nothing that others have.
    fn add(&mut self, disk: DiskConfig) -> std::result::Result<(), Refusal> {
        disk.check()?;
        let taken = |why| Err(Refusal { why, advice: "choose another one" });
        let path = disk.socket.display();
        if self.control.as_ref() == Some(&disk.socket) {
            return taken(format!("{path} is both a disk's socket and the control socket"));
        }
        if self.guest_agent.as_ref().is_some_and(|(agent, _)| *agent == disk.socket) {
            return taken(format!("{path} is both a disk's socket and that of guests' agents"));
        }
        if self.disks.iter().any(|other| other.name == disk.name) {
            return taken(format!("two disks are called `{}`", disk.name));
        }
        if self.disks.iter().any(|other| other.socket == disk.socket) {
            return taken(format!("two disks share the socket {path}"));
        }
        let is_its_group = |group: &GroupConfig| disk.group.as_ref() == Some(&group.name);
        if let Some(group) = &disk.group
            && !self.groups.iter().any(is_its_group)
        {
            let why = format!("there is no [[group]] called `{group}`");
            return Err(Refusal { why, advice: "add it, or leave `group` out" });
        }
        self.disks.push(disk);
        Ok(())
    }

    fn add_group(&mut self, table: &GroupTable) -> std::result::Result<(), String> {
        let group = table.read()?;
        check_label("name", "group", &group.name, NAME_BYTES_MAX)?;
        if self.groups.iter().any(|other| other.name == group.name) {
            return Err(format!("two groups are called `{}`", group.name));
        }
        self.groups.push(group);
        Ok(())
    }
}

impl DiskConfig {
    /// A name made from that of an image: as much of it as a disk's name can be.
    pub fn name_from(image: &Path) -> String {
        let stem = image.file_stem().unwrap_or("disk".as_ref()).to_string_lossy();
        let mut name = stem.replace(char::is_control, "_");
        name.truncate(name.floor_char_boundary(NAME_BYTES_MAX));
        name
    }

    /// What the guest reads as the disk's serial number.
    pub fn serial(&self) -> &str {
        let of_name = || &self.name[..self.name.floor_char_boundary(SERIAL_BYTES_MAX)];
        self.serial.as_deref().unwrap_or_else(of_name)
    }

    /// A disk with everything left to its default.
    pub fn new(name: String, socket: PathBuf) -> Self {
        Self {
            name,
            serial: None,
            image: None,
            backend: None,
            socket,
            socket_group: None,
            socket_mode: None,
            format: None,
            queues: QUEUES_DEFAULT,
            cpus: CpuList::default(),
            cpu_budget: None,
            pipeline: Pipeline::default(),
            poll: PollMode::default(),
            discard: DiscardMode::default(),
            detect_zeroes: DetectZeroes::default(),
            journal_ioprio: JOURNAL_IOPRIO_DEFAULT,
            pdc: Pdc::default(),
            limit: Limit::default(),
            group: None,
            weight: Weight::default(),
            vm: VmSpec::default(),
            engine: Choice::default(),
            direct: Choice::default(),
            resort: Resort::default(),
            readonly: false,
            backing_dirs: Vec::new(),
            layers: Vec::new(),
        }
    }

    /// Says what a disk cannot be, whichever others there are.
    fn check(&self) -> std::result::Result<(), Refusal> {
        let refuse = |why: String, advice| Err(Refusal { why, advice });
        let unfit = |why| Refusal { why, advice: "choose another one" };
        check_label("name", "disk", &self.name, NAME_BYTES_MAX).map_err(unfit)?;
        if let Some(serial) = &self.serial {
            check_label("serial", "disk", serial, SERIAL_BYTES_MAX).map_err(unfit)?;
        }
        if self.queues == 0 || self.queues > QUEUES_MAX {
            return refuse(format!("{} queues", self.queues), QUEUES_ADVICE);
        }
        if self.journal_ioprio > JOURNAL_IOPRIO_MAX {
            let why = format!("the journal's priority level {}", self.journal_ioprio);
            return refuse(why, "use a level from 0 to 7");
        }
        if self.detect_zeroes == DetectZeroes::Unmap && self.discard != DiscardMode::Deallocate {
            let why = "zeroes that are unmapped give space back, which its discard mode forbids";
            return refuse(why.into(), "use --discard deallocate or --detect-zeroes on");
        }
        Ok(())
    }
}

fn queues_default() -> u16 {
    QUEUES_DEFAULT
}

fn journal_ioprio_default() -> u8 {
    JOURNAL_IOPRIO_DEFAULT
}

#[cfg(test)]
mod tests;
