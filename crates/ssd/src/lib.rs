//! A deterministic model of a solid-state drive.
//!
//! ```text
//!   SsdFile ──► State ──► Ftl ──► Counts: units written, copied, trimmed; blocks erased
//!  (FileIo)     │  │      └─ Victims: which block is collected next
//!               │  └─ Contents
//!               └─ Work: how long that takes
//! ```
//!
//! A file on it is a [`FileIo`](flowstone_fileio::FileIo), so image code runs on it unchanged. The
//! model's time advances only when something waits: the same calls give the same counts, times and
//! contents.

mod channel;
mod contents;
mod drive;
mod file;
mod ftl;
mod options;
mod place;
mod shared;
mod state;
mod time;
mod timing;
mod victims;

pub use drive::{Ssd, Tally};
pub use file::SsdFile;
pub use ftl::{Counts, Ftl, LABELS, Shape};
pub use options::{SsdOptions, TrimMode};
pub use state::Labeller;
pub use time::{ModelTime, beside, in_charge};
pub use timing::Timing;
pub use victims::Policy;
