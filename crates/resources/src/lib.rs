//! All caches that share the memory of a host: its own sector cache and guests' file caches (S5.4,
//! S5.8). [`GuestAgents`] hears the guests and sends grants; a [`Pool`] decides the sizes.

#[cfg(test)]
mod beside_a_scan;
mod grants;
mod guest_agent;
mod pool;

pub use guest_agent::{GuestAgents, Heard};
pub use pool::{GuestCache, PERIOD, Pool, in_words};
