//! The kit against a backend written by others: `qemu-storage-daemon`.
//!
//! What is proved here is the kit, so that a failure elsewhere is the backend's. Without the
//! program installed the tests say so and pass.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod load;
mod peer;
mod session;
