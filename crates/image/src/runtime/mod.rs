//! Parts that every image format needs besides its own map: shared syncs, wake-ups, discards that
//! are merged and carried out beside the guests, and the commands of the maintenance worker.
//!
//! Nothing here depends on a format.

pub mod completion_queue;
pub mod discards;
pub mod group_sync;
pub mod inbox;
pub mod pace;
pub mod trims;
pub mod wakers;
pub mod worker;

#[cfg(feature = "model")]
#[cfg(test)]
mod models;
