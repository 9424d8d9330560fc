//! The control socket: HTTP/1.1 on a unix socket that only its owner may use, unless more is asked
//! for.
//!
//! One thread, `control`, has all connections, and sleeps when no client asks. What a request asks
//! for may wait for a host: it is carried out on one of a few more threads, which end when there is
//! nothing to do. Not on the data path: a slow client waits alone. Clients are bounded in number,
//! their requests in bytes and time.

mod answer;
mod client;
mod failure;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
mod listener;
mod paths;
mod patient;
mod server;
mod stream;

use std::path::PathBuf;
use std::time::Duration;

use flowstone_block::SizeChange;

pub use self::answer::{Answer, Handler};
pub use self::client::{Client, Received};
pub use self::failure::Refused;
pub use self::listener::Address;
pub use self::server::ControlServer;
pub use self::stream::{Enough, Sink};

/// Longest head and longest body of a request; a client that sends more is not one of ours.
const REQUEST_BYTES_MAX: usize = 64 << 10;
/// How long either end waits for the other: for a whole request, and for room for an answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Clients served at once; one more is sent away. Each has one thread that carries out its request
/// at most.
const CLIENTS_MAX: usize = 32;

/// What can be asked for, for programs.
pub const OPENAPI: &str = include_str!("../../../docs/openapi.json");

/// The disk that a client means.
#[derive(Clone, Debug)]
pub struct DiskWord {
    /// The disk's name or the path of its image.
    pub name: String,
    /// The image that `name` is where the client runs; `name` is then no path to us.
    pub path: Option<PathBuf>,
}

/// What a client can ask for.
#[derive(Clone, Debug)]
pub enum Command {
    /// Read the configuration again.
    Reload,
    /// The counters of everything.
    Stats {
        /// Whether with the buckets of durations.
        buckets: bool,
    },
    /// The same as Prometheus reads it.
    Metrics,
    /// On which NUMA nodes guests' memory and queues are.
    Numa,
    /// What has been recognised on a disk.
    Layout(DiskWord),
    /// What can be asked for.
    OpenApi,
    /// What happens to disks from now on.
    Events,
    /// All disks, whatever has become of them.
    Disks,
    /// One disk, and its keys.
    Show(String),
    /// Serve one more disk, by the keys of a `[[disk]]`.
    Add(String, toml::Table),
    /// Serve a disk no longer.
    Remove {
        /// Its name.
        name: String,
        /// Whether to hang up on its guest.
        force: bool,
    },
    /// Change a disk while its guest runs, all that is given or nothing.
    Change(DiskWord, DiskChange),
    /// Send what a disk is asked for from now on, until the client ends that.
    Record {
        /// The disk.
        disk: DiskWord,
        /// Whether times are rounded down to a millisecond.
        coarse: bool,
    },
    /// All groups of disks.
    Groups,
    /// One more group, by the keys of a `[[group]]`.
    AddGroup(String, toml::Table),
    /// A group goes that no disk is in.
    RemoveGroup(String),
    /// Change what the disks of a group may use together.
    SetGroup {
        /// The group's name.
        group: String,
        /// Its whole limit, as `serve --limit` takes it.
        limit: String,
    },
}

/// What is to be changed of a disk; what is not given stays.
#[derive(Clone, Debug, Default)]
pub struct DiskChange {
    /// Its size.
    pub size: Option<SizeChange>,
    /// Its whole limit, as `serve --limit` takes it.
    pub limit: Option<String>,
    /// Its weight beside others.
    pub weight: Option<u32>,
}
