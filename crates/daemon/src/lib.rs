//! The daemon: wires stages into disks, runs their queues, and answers operators.
//!
//! `stack` is the only file that names more than one stage. A `Disk` is a stack with a socket;
//! [`serve()`] runs all disks of a configuration until a signal ends them.

mod config;
mod control;
mod counters;
mod cpus;
mod disk;
mod histogram;
mod open_files;
mod report;
mod runner;
mod serve;
mod spin;
mod stack;
mod worker;

pub use config::{Backend, Choice, Config, DiskConfig, LayerSpec, PollMode, Source, keys};
pub use control::{Client, Command};
pub use cpus::CpuList;
pub use flowstone_frontend::{SocketGroup, SocketMode};
pub use flowstone_layers::DetectZeroes;
pub use serve::serve;
