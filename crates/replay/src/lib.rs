//! Runs an image on a model of an SSD, under a trace or a generated load.
//!
//! ```text
//!   load or trace ──► Guest ──► image (the product's code) ──► ssd
//!                       │          └─ Upkeep                    │
//!                       └────────── World: one thread, the drive's time ─┘
//! ```
//!
//! All happens on one thread, in the drive's time, which passes only while all others wait. So the
//! same load gives the same figures, on any machine.

mod guest;
mod load;
mod report;
mod run;
mod world;

pub use flowstone_ssd::{SsdOptions, TrimMode};
pub use flowstone_trace::{Event, Kind, Trace, read as read_trace};
pub use load::Generator;
pub use report::Report;
pub use run::{Load, ReplayOptions, Timing, replay};
