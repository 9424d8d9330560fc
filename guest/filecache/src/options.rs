//! The options of a mount.

use std::path::PathBuf;
use std::time::Duration;

use flowstone_policy::{Link, Multicache, Policy, PolicyKind, Windows};

use crate::budget::Budget;
use crate::open_mode::Modes;

/// The place of copies, and their limit in bytes.
#[derive(Clone, Debug)]
pub enum Place {
    /// Memory.
    Memory(u64),
    /// A folder.
    Folder(PathBuf, u64),
}

impl Place {
    /// Returns the limit, and its name in reports.
    pub fn budget(&self) -> Budget {
        match self {
            Self::Memory(bytes) => Budget { bytes: *bytes, by: "memory" },
            Self::Folder(_, bytes) => Budget { bytes: *bytes, by: "size" },
        }
    }
}

/// The behaviour when the source does not answer.
#[derive(Clone, Copy, Debug)]
pub struct TroubleOptions {
    /// Time without answers after which it is down.
    pub timeout: Duration,
    /// Requests that only it can answer then fail, instead of waiting.
    pub fails_when_down: bool,
}

/// Limits of write-back.
#[derive(Clone, Copy, Debug)]
pub struct WriteBackOptions {
    /// Longest time that a file may be dirty.
    pub time: Duration,
    /// Most dirty bytes.
    pub bytes: u64,
    /// A close does not write back.
    pub lazy_close: bool,
}

/// All options of a mount.
#[derive(Clone, Debug)]
pub struct Options {
    /// The shared storage.
    pub source: PathBuf,
    /// The mount point.
    pub mount: PathBuf,
    /// The place of copies.
    pub place: Place,
    /// Folder of the usage history, if it is to be kept.
    pub state: Option<PathBuf>,
    /// The policy that decides which files have a copy.
    pub policy: PolicyKind,
    /// Thresholds of the paper's policy.
    pub windows: Windows,
    /// Time between two epochs of the policy.
    pub epoch: Duration,
    /// Longest age of names and attributes.
    pub window: Duration,
    /// Time after a comparison with the source in which a copy is opened without another one.
    pub trust: Duration,
    /// The allowed modes.
    pub modes: Modes,
    /// The behaviour when the source does not answer.
    pub trouble: TroubleOptions,
    /// Limits of write-back; without it writes are at the source when they return.
    pub write_back: Option<WriteBackOptions>,
    /// Extended attributes are supported, if the source has them.
    pub xattrs: bool,
    /// The path to the host; `None` for the virtio port, if there is one.
    pub agent: Option<PathBuf>,
}

impl Options {
    /// Makes the policy.
    pub fn new_policy(&self) -> Box<dyn Policy> {
        let bytes = self.place.budget().bytes;
        match self.policy {
            PolicyKind::Multicache => Box::new(Multicache::with_windows(bytes, self.windows)),
            other => other.build(bytes, Link::default()),
        }
    }
}

#[cfg(test)]
impl Options {
    /// Options of a mount of this folder that is never mounted.
    pub fn for_test(folder: &std::path::Path) -> Self {
        Self {
            source: folder.to_owned(),
            mount: folder.to_owned(),
            place: Place::Memory(1 << 20),
            state: None,
            policy: PolicyKind::Lru,
            windows: Windows::default(),
            epoch: Duration::from_secs(5),
            window: Duration::from_secs(3),
            trust: Duration::ZERO,
            modes: Modes::ALL,
            trouble: TroubleOptions { timeout: Duration::from_secs(5), fails_when_down: false },
            write_back: None,
            xattrs: true,
            agent: None,
        }
    }
}
