//! Runs an image under a trace or a generated load, on a model of an SSD or on a file or a device
//! of this host.
//!
//! ```text
//!   load or trace ──► Guest ──► cache ──► image (the product's code) ──► Model's drive | Host
//!                       │                    └─ Upkeep                      │
//!                       └───── Model: one thread, the drive's time ────────┘
//! ```
//!
//! On a model everything runs on one thread, in the drive's time, which advances only while
//! everything else waits. So the same load gives the same figures, on any machine.

mod guest;
mod ideal;
mod kinds;
mod load;
mod medium;
mod model;
mod onto;
mod options;
mod plan;
mod report;
mod run;
mod stack;

pub use flowstone_ssd::{SsdOptions, TrimMode};
pub use flowstone_trace::{Class, Event, Kind, Phase, Trace, read as read_trace};
pub use ideal::Ideal;
pub use kinds::{KindBlocks, Kinds};
pub use load::Generator;
pub use options::{CacheOptions, Load, Onto, ReplayOptions, Timing};
pub use report::{ClassHits, Figures, Hits, PhaseFigures, Report};
pub use run::replay;
