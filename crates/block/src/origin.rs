//! Where a request comes from.

use std::fmt;

/// Who asks for something. What stands above the images tells guests apart by it.
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

/// A process that has connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Peer {
    /// Its number, which another process may have when it has ended. A socket may outlive it, in
    /// the hands of its children.
    pub pid: u32,
    /// When it started, in clock ticks since the host did, if that may be seen: tells it from
    /// another one with its number.
    pub start: Option<u64>,
}
