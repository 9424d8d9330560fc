//! The `flowstone` command and its daemon from the outside: a real process, a real socket, and a
//! vhost-user-blk driver on the other side.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod bad_input;
mod cache;
mod check_after_kill;
mod classes;
mod compact;
mod daemon_log;
mod discards;
mod ends;
mod events;
mod fixture;
mod groups;
mod guest_agent;
mod guest_memory;
mod host_file_systems;
mod host_trouble;
mod hostile_guest;
mod hot_disks;
mod hung_changes;
mod hung_host;
mod kept_disks;
mod limits;
mod locks;
mod log_images;
mod many_disks;
mod metrics;
mod model;
mod moved_images;
mod openapi;
mod other_boots;
mod overlaps;
mod pollers;
mod prometheus;
mod qcow2;
mod record;
mod reload;
mod replay;
mod serving;
mod shares;
mod sockets;
mod space;
mod survival;
mod tools;
mod troubled_host;
mod weights;
