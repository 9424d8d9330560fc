//! The daemon: wires stages into disks, runs their queues, and answers operators.
//!
//! `stack` is the only file that names more than one stage (front end, classification, limits,
//! cache, layers, images). A `Disk` is a stack with a socket; [`serve()`] runs all disks of a
//! configuration until a signal ends them.

mod back_task;
mod batch;
mod cache_report;
mod chain_ring;
mod config;
mod control;
mod counters;
mod cpu_budget;
mod cpus;
mod disk;
mod disk_task;
mod disks;
mod events;
mod failures;
#[cfg(test)]
mod fake_guest;
mod front_task;
mod groups;
mod guest_agent;
mod halves;
mod held_data;
#[cfg(test)]
mod held_disk;
mod histogram;
mod idle_cpus;
mod image_probe;
mod image_report;
mod intake;
mod kicks;
mod memory_charge;
mod metrics;
mod numa;
mod numa_report;
mod open_files;
mod origin;
mod poller;
mod pollers;
mod qos_control;
mod queue_run;
mod queue_task;
mod real_path;
mod recording;
mod report;
mod resource_monitor;
mod runner;
mod serve;
#[cfg(test)]
mod served_disk;
mod spin;
mod stack;
mod state;
mod vm_report;
mod vms;
#[cfg(test)]
mod waits;

/// Names the control socket where it is not typed.
pub const CONTROL_VARIABLE: &str = "FLOWSTONE_CONTROL";
/// Where the control socket is unless something else is said.
pub const CONTROL_DEFAULT: &str = "/run/flowstone/control.sock";

pub use config::{
    Config, DaemonConfig, DiskConfig, DiskTable, MetricsBuckets, VmSpec, key_of, keys_of,
    typed_disk,
};
#[cfg(any(test, feature = "testing"))]
pub use control::fuzzing;
pub use control::{Address, Client, Command, DiskChange, DiskWord, Received};
pub use cpu_budget::CpuShare;
pub use cpus::CpuList;
pub use flowstone_frontend::{SocketAccess, SocketGroup, SocketMode};
pub use pollers::{Pipeline, PollerChoice, PollersConfig};
pub use serve::serve;
pub use spin::PollMode;
pub use stack::{Pdc, PdcArgs};
