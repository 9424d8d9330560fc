//! A workload generator that acts as a busy guest, for benches and for tests.
//!
//! `options` describes a run, `run` executes it on the devices that `setup` prepares and returns a
//! `LoadReport`. A `lane` is a queue with its requests, a `worker` a thread that drives lanes,
//! `source` chooses requests and `pace` their times, `check`, `pattern` and `map` verify that reads
//! return the written data, `cpu` measures the server.
//!
//! The data path does not allocate, does not lock and writes descriptors once: the generator itself
//! must not be the bottleneck.

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

pub use cpu::CpuSample;
pub use map::VerifyMap;
pub use options::{Aside, Completion, Limit, LoadOptions, Mix, Order, Workload};
pub use report::{Latency, LoadReport};
pub use run::{run, run_together, run_with_map};
