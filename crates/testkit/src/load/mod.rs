//! A workload generator that plays a busy guest, for benches and for tests.
//!
//! `options` says what to do, `run` does it on the stage that `setup` builds and returns a
//! `LoadReport`. A `lane` is a queue with its requests, a `worker` a thread that drives lanes,
//! `source` decides what comes next and `pace` when, `check`, `pattern` and `map` prove that reads
//! return what was written, `cpu` measures the server.
//!
//! The data path allocates nothing, locks nothing and writes descriptors once: the generator must
//! not be what is measured.

mod check;
mod cpu;
mod lane;
mod map;
mod options;
mod pace;
mod pattern;
mod report;
mod run;
mod setup;
mod shared;
mod source;
mod stats;
#[cfg(test)]
mod tests;
mod worker;
mod zipf;

pub use cpu::{CpuSample, CpuTime};
pub use map::VerifyMap;
pub use options::{Completion, Limit, LoadOptions, Mix, Order, Workload};
pub use report::{Latency, LoadReport};
pub use run::{run, run_together, run_with_map};
