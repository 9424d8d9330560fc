//! Test and measurement kit: everything needed to play the guest's side of vhost-user-blk.
//!
//! `driver` is a split virtqueue as a guest driver keeps it, `client` a session that talks to a
//! backend over its socket, `load` a workload generator on top of both, `model` a reference disk to
//! compare answers with, `process` starts and stops the program under test, `patience` waits for
//! what others do, `page_cache` says what the host keeps of a file, `truth` says what the blocks of
//! a file system hold, `fuse` is a host that can be stopped, `table` compares documents with code.
//!
//! The kit knows the virtio and vhost-user specifications and nothing of Flowstone's own crates,
//! so that a mistake made there cannot be repeated here unseen. It runs against any backend.

pub mod client;
pub mod driver;
mod error;
pub mod fuse;
pub mod load;
pub mod model;
pub mod page_cache;
pub mod patience;
pub mod process;
pub mod table;
pub mod truth;
pub mod virtio;

pub use client::{Client, ClientOptions, Request, Status};
pub use error::{Error, Result};
pub use model::Model;
pub use patience::{HANG, cpu_time, skip, wait_for, wait_until};
pub use process::{Daemon, DaemonCommand, TempDir};
