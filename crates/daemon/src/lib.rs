//! The daemon: wires stages into disks, runs their queues, and answers operators.
//!
//! `stack` is the only file that names more than one stage (front end, classification, limits,
//! cache, layers, images). A `Disk` is a stack with a socket; [`serve()`] runs all disks of a
//! configuration until a signal ends them.

mod cache_report;
mod config;
mod disk;
mod disks;
mod families;
mod front_end;
#[cfg(feature = "testing")]
pub mod fuzzing;
mod groups;
mod held_data;
mod image_probe;
mod image_report;
mod memory_charge;
mod metrics;
mod numa_report;
mod qos_control;
mod recording;
mod report;
mod resource_monitor;
mod serve;
mod stack;
mod state;
mod vm_report;
mod vms;
#[cfg(test)]
mod waits;

/// Environment variable with the path of the control socket.
pub const CONTROL_VARIABLE: &str = "FLOWSTONE_CONTROL";
/// Default path of the control socket.
pub const CONTROL_DEFAULT: &str = "/run/flowstone/control.sock";

pub use config::{
    Config, DaemonConfig, DiskConfig, DiskTable, VmSpec, key_of, keys_of, typed_disk,
};
pub use families::MetricsBuckets;
pub use flowstone_host::{SocketAccess, SocketGroup, SocketMode};
pub use serve::serve;
pub use stack::{Pdc, PdcArgs};
