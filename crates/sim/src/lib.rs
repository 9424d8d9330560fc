//! Files for tests, below the seam [`FileIo`]; nothing that is released depends on this crate.
//!
//! * [`SimDisk`]: a disk in memory, with a history from which crashes are made and with faults on
//!   demand. It never serves a guest.
//! * [`VolatileFile`]: a drive's write cache over a real file, in this process: killing the process
//!   is a power cut. The daemon in `tests/power_cut` serves guests from it.
//!
//! A [`SimDisk`] is used like any host file. Meanwhile it writes down everything that changes it.
//! Afterwards, or in between, [`crash_at`](SimDisk::crash_at) makes another disk, which holds what
//! can be on the medium when power is cut at a [`Moment`]; a [`Fate`] makes the choices, each
//! reproducible from its seed. The new disk has a life of its own, so what recovers it can be
//! interrupted in turn.
//!
//! What survives a power cut, and what may:
//!
//! * A datasync makes durable what had completed when it was submitted, and is done doing so when
//!   it completes. A durable write makes itself durable, and nothing else.
//! * Everything else that had been submitted is there, is not, or is there in part: writes by
//!   sectors of 512 bytes or 4 KiB, punches and zeroes by 4 KiB. It took effect at any time
//!   between submission and completion (or the cut), so of two that overlapped in time either may
//!   lie on top; once durable, the order in which they completed stands.
//! * Changes of size survive in their order: none without those before it.
//! * The file is as long as what survived makes it, and its new parts read as zeroes.
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
mod disk;
mod fate;
mod faults;
mod history;
mod medium;
mod schedule;
mod state;
mod volatile;

#[cfg(test)]
mod tests;

pub use crash::EXHAUSTIVE_MAX;
pub use disk::SimDisk;
pub use fate::Fate;
pub use faults::{Call, Fault, Landed};
pub use history::Moment;
pub use schedule::Schedule;
pub use volatile::{VolatileFile, open_volatile};
