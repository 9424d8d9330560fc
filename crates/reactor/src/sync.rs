//! Synchronisation primitives: atomics, fences, locks, channels and threads. They are those of
//! `std`; in a model (feature `model`) they are those of loom, which tries interleavings of
//! threads, and for each load the values that the memory model allows.
//!
//! Code that models run imports them from here (docs/testing.md). `Arc` is std's in models, too: no
//! model checks when something is freed.

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
