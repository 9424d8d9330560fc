//! What comes back of a request.

use super::Status;

/// Names a submitted request until its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// The answer to a request.
#[derive(Clone, Debug)]
pub struct Completion {
    /// Which request.
    pub ticket: Ticket,
    /// The status byte.
    pub status: Status,
    /// What the device wrote, status not counted; as long as the request asked for.
    pub data: Vec<u8>,
    /// How many bytes the device claims to have written, status counted.
    pub written_bytes: u32,
}
