//! The origin of a request.

use std::fmt;

/// The submitter of a request. Layers above the images tell guests apart by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Origin {
    /// No guest: the daemon itself, or a tool.
    #[default]
    Own,
    /// A queue of a disk.
    Queue {
        /// The disk's number in its daemon, in the order of the configuration.
        disk: u32,
        /// The number of the queue of that disk.
        queue: u16,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own => f.write_str("own"),
            Self::Queue { queue, .. } => write!(f, "q{queue}"),
        }
    }
}

/// A connected process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Peer {
    /// Its process ID, which may be reused after it has ended. A socket may outlive it, held by its
    /// children.
    pub pid: u32,
    /// Its start time in clock ticks since the host's boot, if it is readable: tells it from
    /// another process of the same ID.
    pub start: Option<u64>,
}
