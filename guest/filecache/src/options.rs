//! What a mount is asked to be.

use std::path::PathBuf;
use std::time::Duration;

use flowstone_policy::{Link, Multicache, Policy, PolicyKind, Windows};

use crate::budget::Budget;
use crate::open_mode::Modes;

/// Where copies are, and how much they may take.
#[derive(Clone, Debug)]
pub enum Place {
    /// Memory.
    Memory(u64),
    /// A folder.
    Folder(PathBuf, u64),
}

impl Place {
    /// How much, and what that is called where the limit is shown.
    pub fn budget(&self) -> Budget {
        match self {
            Self::Memory(bytes) => Budget { bytes: *bytes, by: "memory" },
            Self::Folder(_, bytes) => Budget { bytes: *bytes, by: "size" },
        }
    }
}

/// What is done when the source does not answer.
#[derive(Clone, Copy, Debug)]
pub struct TroubleOptions {
    /// It is down after so long.
    pub timeout: Duration,
    /// What only it can answer fails then, instead of waiting.
    pub fails_when_down: bool,
}

/// How much may be newer here than at the source.
#[derive(Clone, Copy, Debug)]
pub struct WriteBackOptions {
    /// For so long.
    pub time: Duration,
    /// So many bytes.
    pub bytes: u64,
    /// A close leaves it so.
    pub lazy_close: bool,
}

/// All of it.
#[derive(Clone, Debug)]
pub struct Options {
    /// The shared storage.
    pub source: PathBuf,
    /// Where its files are shown.
    pub mount: PathBuf,
    /// Where copies are.
    pub place: Place,
    /// Folder for the history of use, if it is to be kept.
    pub state: Option<PathBuf>,
    /// What decides which files have one.
    pub policy: PolicyKind,
    /// Thresholds of the paper's policy.
    pub windows: Windows,
    /// Time between two epochs of the policy.
    pub epoch: Duration,
    /// How old names and attributes may be.
    pub window: Duration,
    /// For how long after a comparison with the source a copy is opened without another one.
    pub trust: Duration,
    /// How files may be opened.
    pub modes: Modes,
    /// What is done when the source does not answer.
    pub trouble: TroubleOptions,
    /// Whether writes are kept back; without it they are at the source when they return.
    pub write_back: Option<WriteBackOptions>,
    /// Whether extended attributes are shown, where the source has any.
    pub xattrs: bool,
    /// The way to the host; a virtio port, if there is one, without it.
    pub agent: Option<PathBuf>,
}

impl Options {
    /// The policy.
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
    /// Of a mount that shows this folder, and is never made.
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
