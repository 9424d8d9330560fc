//! Every engine serves the same seam: each claim here is made of all of them.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod engines;
mod lost_memory;
mod opening;
mod page_cache;
mod process_limit;
mod stopped_server;
