//! vhost-user-blk, the device side.
//!
//! Control messages (crate `vhost`) reach `Device`; it hands running rings as
//! [`VirtQueue`]s to a [`QueueRunner`]. A guest is hostile until proven otherwise: chains are
//! bounded, headers and range lists are copied once and checked as copies, guest addresses become
//! host addresses only through [`GuestMemory`], and a ring that breaks the rules is left alone.

mod chain;
mod config_space;
mod device;
mod inflight;
mod memory;
mod peer;
mod protocol;
mod queue;
mod request;
mod ring;
mod server;
mod shared;
mod vring;

pub use self::peer::{peer_called, peer_of};
pub use device::{DeviceOptions, QueueRunner};
pub use memory::{GuestMemory, NodePages, expect_disks};
pub use queue::{
    AvailHalf, Finished, QueueFault, Signal, Start, StatusPlace, Taken, UsedHalf, VirtQueue, Work,
};
pub use server::{HangUp, Server};
pub use shared::{Connection, DeviceShared, Guest};

#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
