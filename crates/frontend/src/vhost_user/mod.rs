//! vhost-user-blk, the device side.
//!
//! Control messages (crate `vhost`) reach `Device`; it passes running rings as [`VirtQueue`]s to a
//! [`QueueRunner`](flowstone_block::QueueRunner). Guests are untrusted: chains are bounded, headers
//! and range lists are copied once and checked as copies, guest addresses become host addresses
//! only through [`GuestMemory`], and a ring that breaks the rules is stopped.

mod chain;
mod config_space;
mod device;
mod inflight;
mod memory;
mod protocol;
mod queue;
mod request;
mod ring;
mod server;
mod shared;
#[cfg(test)]
mod unused_disk;
mod vring;

pub use device::DeviceOptions;
pub use memory::{GuestMemory, NodePages, expect_disks};
pub use queue::{AvailHalf, QueueFault, Start, UsedHalf, VirtQueue};
pub use server::{HangUp, Server};
pub use shared::{DeviceShared, Guest, MonitorChange};

#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
