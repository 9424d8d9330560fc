//! The control socket: HTTP/1.1 on a unix socket that only its owner may use by default. Requests
//! are parsed into [`Command`]s, which the daemon carries out; [`Client`] is the other end.
//!
//! One thread, `control`, owns all connections and sleeps while no client sends. Requests may wait
//! for a host, so they run on a few more threads, which end when idle. Not on the data path: a slow
//! client delays only itself. Clients are limited in number, requests in bytes and time.

mod answer;
mod client;
mod events;
mod failure;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
mod listener;
mod origin;
mod paths;
mod patient;
mod server;
mod stream;

use std::path::PathBuf;
use std::time::Duration;

use flowstone_block::SizeChange;
use serde::Serialize;

pub use answer::{Answer, Handler};
pub use client::{Client, Received};
pub use events::{Event, Events};
pub use failure::{Failure, Refused};
pub use listener::Address;
pub use origin::Origin;
pub use server::ControlServer;
pub use stream::{Enough, Sink};

/// Longest head and longest body of a request; more is not sent by our clients.
const REQUEST_BYTES_MAX: usize = 64 << 10;
/// Time limit for receiving a request, for room for an answer, and for an answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Clients served at once; further ones are refused. Each has at most one thread that runs its
/// request.
const CLIENTS_MAX: usize = 32;

/// Machine-readable description of the requests.
pub const OPENAPI: &str = include_str!("../../../docs/openapi.json");

/// A client's name for a disk.
#[derive(Clone, Debug)]
pub struct DiskWord {
    /// Name of the disk, or path of its image.
    pub name: String,
    /// `name` as a path resolved in the client's working directory, if it was a path there; then
    /// `name` is not used as a path here.
    pub path: Option<PathBuf>,
}

/// A client's request.
#[derive(Clone, Debug)]
pub enum Command {
    /// Read the configuration again.
    Reload,
    /// Read all counters.
    Stats {
        /// Whether to include histogram buckets.
        buckets: bool,
    },
    /// Read the counters in Prometheus' format.
    Metrics,
    /// Show the NUMA nodes of guests' memory and queues.
    Numa,
    /// Show the layout recognised on a disk.
    Layout(DiskWord),
    /// Read the description of the requests.
    OpenApi,
    /// Stream events of disks from now on.
    Events,
    /// List all disks, in any state.
    Disks,
    /// Show one disk with its keys.
    Show(String),
    /// Add a disk with the keys of a `[[disk]]`.
    Add(String, toml::Table),
    /// Remove a disk.
    Remove {
        /// Its name.
        name: String,
        /// Whether to disconnect its guest.
        force: bool,
    },
    /// Change a disk while its guest runs: all given settings or none.
    Change(DiskWord, DiskChange),
    /// Stream the requests of a disk from now on, until the client ends it.
    Record {
        /// The disk.
        disk: DiskWord,
        /// Whether times are rounded down to a millisecond.
        coarse: bool,
    },
    /// List all groups of disks.
    Groups,
    /// Add a group with the keys of a `[[group]]`.
    AddGroup(String, toml::Table),
    /// Remove a group without disks.
    RemoveGroup(String),
    /// Change the limit of a group.
    SetGroup {
        /// The group's name.
        group: String,
        /// The whole limit, in the syntax of `serve --limit`.
        limit: String,
    },
}

/// Settings of a disk to change; `None` leaves a setting unchanged.
#[derive(Clone, Debug, Default)]
pub struct DiskChange {
    /// New size.
    pub size: Option<SizeChange>,
    /// The whole limit, in the syntax of `serve --limit`.
    pub limit: Option<String>,
    /// Weight relative to other disks.
    pub weight: Option<u32>,
}

/// Returns a value as a line of JSON.
fn json_line(value: &impl Serialize) -> Vec<u8> {
    let mut text = serde_json::to_vec(value).expect("it is plain values");
    text.push(b'\n');
    text
}
