//! Tests of the guarantees of a log image on a simulated disk: docs/format.md is the argument,
//! these are the attempts to refute it.

mod checkpoints;
mod churn;
mod compact;
mod copies;
mod crash;
mod damage;
mod ends;
mod faults;
mod fixture;
mod freed;
mod gather;
mod held;
mod history_model;
mod holds;
mod host_space;
mod hostile;
mod kill;
mod matrix;
mod odd_sizes;
mod older_images;
mod outlive;
mod overlaps;
mod progress;
mod races;
mod resize;
mod resort;
mod root;
mod rot;
mod runs;
mod scheduler;
mod soak;
mod space;
mod streams;
mod threads;
mod threads_cut;
mod trims;
mod unreadable;
mod upkeep;
mod write_streams;

pub(crate) use self::crash::Tell;
pub(crate) use self::scheduler::run_hook;
