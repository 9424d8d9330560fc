//! Test and measurement kit: the guest's side of vhost-user-blk.
//!
//! `driver` is a split virtqueue as in a guest driver, `client` a session with a backend over its
//! socket, `load` a workload generator on top of both, `model` a reference disk to compare answers
//! with, `process` starts and stops the program under test, `patience` waits for other threads and
//! processes, `page_cache` shows the cached pages of a file, `truth` shows the content of a file
//! system's blocks, `fuse` is a host that can be stopped, `table` compares documents with code,
//! `log_lines` counts what a thread logs.
//!
//! The kit implements the virtio and vhost-user specifications without Flowstone's own crates, so
//! that a mistake made there is not repeated here unnoticed. It works with any backend.

pub mod client;
pub mod driver;
mod error;
pub mod fuse;
pub mod load;
mod log_lines;
pub mod model;
pub mod page_cache;
pub mod patience;
pub mod process;
pub mod table;
pub mod truth;
pub mod virtio;

pub use client::{Client, ClientOptions, Request, Status};
pub use error::{Error, Result};
pub use log_lines::lines_logged;
pub use model::Model;
pub use patience::{HANG, cpu_time, skip, wait_for, wait_until};
pub use process::{Daemon, DaemonCommand, TempDir};
