//! The framework that runs real guests on flowstone disks, for tests and the demo.
//!
//! ```text
//! Lab ── one a processor ──┬─ Daemon   flowstone serve; killed, restarted, asked for stats
//!                          ├─ Fleet    a daemon of several disks
//!                          └─ Guest    QEMU + Linux; scripts through the agent, QMP beside it
//! ```
//! `artifacts` and `accel` decide whether and how a guest can run on this machine.

pub mod accel;
pub mod agent;
pub mod artifacts;
pub mod child;
pub mod daemon;
pub mod diagnosis;
pub mod fleet;
pub mod guest;
pub mod lab;
pub mod log_image;
pub mod nfs;
pub mod qemu;
pub mod qmp;
pub mod stats;
pub mod tools;
pub mod workspace;
