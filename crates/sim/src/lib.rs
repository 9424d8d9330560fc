//! Test doubles of files, implementing [`FileIo`]; nothing that is released depends on this crate.
//!
//! * [`SimDisk`]: a disk in memory, with a history from which crashes are made and with faults on
//!   demand. It never serves a guest.
//! * [`open_volatile`]: a drive's write cache over a real file, in this process: killing the
//!   process is a power cut. The daemon in `tests/power_cut` serves guests from it.
//! * [`Wrapped`]: a [`SimDisk`] whose channels a test wraps.
//! * [`Deadly`]: a [`SimDisk`] at which a thread panics on demand.
//!
//! A [`SimDisk`] is used like any host file, and records everything that changes it. At any time,
//! [`crash_at`](SimDisk::crash_at) makes another disk with possible contents of the medium after a
//! power cut at a [`Moment`]; a [`Fate`] makes the choices, each reproducible from its seed. The
//! new disk has its own history, so its recovery can be interrupted in turn.
//!
//! The effects of a power cut:
//!
//! * A datasync makes everything durable that had completed when it was submitted; that is
//!   guaranteed from its completion. A durable write makes only itself durable.
//! * Everything else that had been submitted survives as a whole, in part or not at all: writes by
//!   sectors of 512 bytes or 4 KiB, punches and zeroes by 4 KiB. It took effect at any time between
//!   submission and completion (or the cut), so of two that overlapped in time either may be on
//!   top; once durable, the order of completion holds.
//! * Changes of size survive in their order: none without those before it.
//! * The size of the file follows from what survived, and its new parts read as zeroes.
//!
//! ```
//! use flowstone_sim::{Fate, SimDisk};
//! use flowstone_fileio::{FileOffset, FileOp};
//!
//! let write = |at| FileOp::Write { offset: FileOffset::new(at), bytes: 512, durable: false };
//! let disk = SimDisk::new(1 << 20);
//! disk.run(write(0), &mut [1; 512]).unwrap();
//! disk.run(FileOp::Datasync, &mut []).unwrap();
//! disk.run(write(512), &mut [2; 512]).unwrap();
//! for moment in disk.crash_points() {
//!     for seed in 0..4 {
//!         let crashed = disk.crash_at(moment, &mut Fate::seeded(seed));
//!         let mut sectors = [0; 1024];
//!         crashed.read_at(0, &mut sectors);
//!         let ordered = sectors[512] == 0 || sectors[0] == 1;
//!         assert!(ordered, "seed {seed} at {moment:?}");
//!     }
//! }
//! ```
//!
//! [`FileIo`]: flowstone_fileio::FileIo

mod change;
mod channel;
mod crash;
mod deadly;
mod disk;
mod fate;
mod faults;
mod history;
mod medium;
mod schedule;
mod state;
mod volatile;
mod wrapped;

#[cfg(test)]
mod tests;

pub use crash::EXHAUSTIVE_MAX;
pub use deadly::{Deadly, wait_until};
pub use disk::SimDisk;
pub use fate::Fate;
pub use faults::{Call, Fault, Landed};
pub use history::Moment;
pub use schedule::Schedule;
pub use volatile::open_volatile;
pub use wrapped::Wrapped;
