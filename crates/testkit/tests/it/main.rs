//! The kit against an independent backend: `qemu-storage-daemon`.
//!
//! These tests verify the kit, so that failures elsewhere are the backend's. If the program is not
//! installed they are skipped with a message.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod load;
mod peer;
mod session;
