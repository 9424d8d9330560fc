//! The log format: guest writes are appended in order of arrival. Format and argument:
//! docs/format.md.
//!
//! From the bottom up, on `flowstone-log-format` and `flowstone-log-store`: a disk and its map
//! (`volume`), the log that it is on (`log`), loading (`load`, `replay`, `lost_tail`), a queue
//! (`channel`), the thread behind it (`maintenance`), its start (`session`), the image as a whole
//! (`disk`, `state`, `inspect`), check and repair (`check`), and deliberate corruption for tests
//! (`corrupter`, `fuzzing`).

mod channel;
mod check;
mod command;
mod copy_memory;
#[cfg(any(test, feature = "testing"))]
mod corrupter;
mod create;
mod disk;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
mod inspect;
mod load;
mod log;
mod lost_tail;
mod maintenance;
pub mod policy;
mod refusal;
mod replay;
mod resort;
mod session;
mod slots;
mod state;
mod streams;
mod upkeep_options;
mod volume;
mod written;

pub use check::{check, repair};
pub use copy_memory::CopyMemory;
pub use create::{LogOptions, create};
pub use disk::LogImage;
pub use inspect::{LogInfo, inspect};
pub use resort::ResortLimit;
pub use state::LogState;
pub use streams::Streams;
pub use upkeep_options::UpkeepOptions;
pub use volume::map::BlockMap;
pub use written::Written;

#[cfg(test)]
mod tests;
