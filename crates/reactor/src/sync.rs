//! What threads meet in: atomics, fences, locks and channels, and threads themselves. They are
//! those of `std`; in a model (feature `model`) they are those of loom, which tries the orders of
//! threads, and for each load the values that the memory model allows.
//!
//! Code takes them from here if a model runs it (docs/testing.md). `Arc` is std's in models, too:
//! no model asks when something is freed.

#[cfg(feature = "model")]
pub use loom::{
    sync::{Mutex, MutexGuard, atomic},
    thread,
};
#[cfg(not(feature = "model"))]
pub use std::{
    sync::{Mutex, MutexGuard, atomic, mpsc},
    thread,
};

#[cfg(feature = "model")]
pub use crate::model::channel as mpsc;
