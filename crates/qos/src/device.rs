//! Weights of disks on a contended host device.

mod channel;
mod demand;
mod file;
mod gate;
mod host;
mod member;
mod presence;
mod scheduler;
mod share;
mod vm;

pub use file::SharedFile;
pub use presence::Presence;
pub use share::{Devices, DiskShare};
pub use vm::DeviceVm;
