//! Every engine implements the same interface: each test here covers all of them.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod engines;
mod lost_memory;
mod opening;
mod page_cache;
mod process_limit;
mod stopped_server;
