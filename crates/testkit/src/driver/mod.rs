//! The driver's half of a split virtqueue, in memory that a backend can map.
//!
//! `memory` is the guest's RAM in `region`s (memfd), `slice` a piece of it, `queue` the rings in it
//! with `chain` for the descriptors, `event_index` the arithmetic of EVENT_IDX. Well-formed chains
//! go through `DriverQueue::add`; the `raw_*` methods write anything that a hostile guest might.
//! Sockets and block requests are not handled here.

mod chain;
mod event_index;
mod memory;
mod queue;
mod raw;
mod region;
mod slice;
#[cfg(test)]
mod tests;

pub use event_index::need_event;
pub use memory::{Memory, MemoryLayout};
pub use queue::{DriverQueue, Head, QueueOptions, RingAddresses, Used};
pub use raw::RawDescriptor;
pub use region::{GuestAddress, Region};
pub use slice::{Segment, Slice};
