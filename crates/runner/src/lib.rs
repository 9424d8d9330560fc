//! Runs the queues of disks. A task is a queue, or a half of one, on a thread; a poller is a thread
//! that runs tasks; [`Pollers`] are all pollers of the daemon and the logic that moves queues
//! between them. On its way to a thread, a queue or a half is a part, which makes its task there.
//!
//! This crate knows no front end and no stage: a queue is a
//! [`GuestQueue`](flowstone_block::GuestQueue), its disk a [`Layer`](flowstone_block::Layer), and
//! the limit of the disk a [`Throttle`](flowstone_block::Throttle). Tasks are monomorphized for
//! each kind of queue; pollers run tasks of any kind.

mod counters;
mod cpu_budget;
mod cpus;
mod disk_queues;
mod failures;
#[cfg(test)]
mod fake_guest;
#[cfg(test)]
mod held_disk;
mod histogram;
mod idle_cpus;
mod numa;
mod poller;
mod pollers;
mod queue;
#[cfg(test)]
mod served_disk;
mod spin;
mod task;

pub use counters::QueueCounters;
pub use cpu_budget::CpuShare;
pub use cpus::CpuList;
pub use disk_queues::{DiskQueues, DiskRun, QueueTable};
pub use failures::{FailureReport, Failures};
pub use histogram::{Histogram, Snapshot};
pub use numa::{Node, Topology};
pub use pollers::{Pipeline, PollerChoice, PollerReport, Pollers, PollersConfig};
pub use spin::PollMode;
