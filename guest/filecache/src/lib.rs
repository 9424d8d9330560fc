//! A file cache in a guest, in front of shared storage: a FUSE file system over an NFS mount or any
//! folder, which keeps copies of whole files that deserve it in memory or on a disk.
//!
//! ```text
//!   kernel ── fuse ── files ─┬─ nodes       which files the kernel knows
//!                            ├─ open_mode   how an open is answered (pure)
//!                            ├─ bindings    open files and their modes
//!                            ├─ copies      the copies, as the policy decides
//!                            ├─ shelf, history_file   state kept over a restart
//!                            └─ source      calls to the shared storage, as the caller
//!            requests     requests that need the source, which may hang
//!            health       whether the source answers (pure)
//! ```
//!
//! Design and guarantees: `docs/filecache.md`.

mod agent;
mod bindings;
mod budget;
mod callers;
pub mod control;
mod copies;
mod copy;
mod counters;
mod files;
mod fuse;
mod handles;
mod health;
mod hearing;
mod history_file;
mod kernel;
mod kernel_types;
mod library;
mod lists;
mod lock;
pub mod mount_point;
mod nodes;
pub mod open_mode;
mod options;
mod places;
mod ranges;
mod record;
mod requests;
mod serve;
mod session;
mod shelf;
mod source;
mod stamp;
mod store;
mod write_back;

pub use counters::{Counter, Counters, Opens, Report};
pub use options::{Options, Place, TroubleOptions, WriteBackOptions};
pub use serve::serve;

/// Converts errors of the standard library into those of system calls.
fn errno(error: impl std::borrow::Borrow<std::io::Error>) -> rustix::io::Errno {
    let code = error.borrow().raw_os_error();
    code.map_or(rustix::io::Errno::IO, rustix::io::Errno::from_raw_os_error)
}

/// Syncs a file or a folder, also where the file system's server lets a signal end the call.
#[expect(clippy::disallowed_methods, reason = "no image of a disk is a file of a guest's cache")]
fn to_disk(file: impl std::os::fd::AsFd) -> rustix::io::Result<()> {
    rustix::io::retry_on_intr(|| rustix::fs::fsync(&file))
}
