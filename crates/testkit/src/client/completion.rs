//! Completions of requests.

use super::Status;

/// Identifies a submitted request until its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// The completion of a request.
#[derive(Clone, Debug)]
pub struct Completion {
    /// The request.
    pub ticket: Ticket,
    /// The status byte.
    pub status: Status,
    /// The data written by the device, without the status; as long as the request asked for.
    pub data: Vec<u8>,
    /// Number of bytes that the device reports as written, including the status.
    pub written_bytes: u32,
}
