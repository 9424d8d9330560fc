//! The requests of a disk at its devices.

/// A disk's requests at devices where disks contend, now.
#[derive(Clone, Copy, Default)]
pub struct Presence {
    /// Requests in flight, without syncs.
    pub in_flight: usize,
    /// Requests and syncs that wait for their turn.
    pub waiting: usize,
    /// The limit of requests in flight of all disks.
    pub depth: usize,
}
