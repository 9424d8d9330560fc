//! The error type of the kit: a kind to match on, with the cause as source.
//!
//! Every variant names the failed action. A status byte other than OK is not an error: the test
//! decides whether it is the right answer.

use std::io;

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of the kit.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error("{action}")]
    Io {
        /// The failed action.
        action: String,
        /// The reason given by the system.
        #[source]
        source: io::Error,
    },
    /// A vhost-user message failed, or the backend refused it.
    #[error("vhost-user: {action}")]
    Vhost {
        /// The message that failed.
        action: String,
        /// The reason given by the wire crate.
        #[source]
        source: vhost::Error,
    },
    /// The backend violated the specification.
    #[error("backend broke the protocol: {0}")]
    Protocol(String),
    /// The backend closed the connection.
    #[error("backend closed the connection while {0}")]
    Disconnected(String),
    /// The timeout of a wait.
    #[error("timeout after {timeout_ms} ms while {action}")]
    Timeout {
        /// The event that was awaited.
        action: String,
        /// The timeout.
        timeout_ms: u64,
    },
    /// The request was completed in the ring, but the requested call was not signalled.
    #[error("a completion arrived without a call on queue {queue}")]
    LostCall {
        /// The queue that was waited on.
        queue: usize,
    },
    /// Data read back differs from the data written.
    #[error("verify: {0}")]
    Verify(String),
    /// The kit was asked for something impossible (too large, not negotiated, wrong state).
    #[error("misuse: {0}")]
    Misuse(String),
    /// The daemon did not start, or ended unexpectedly.
    #[error("daemon: {0}")]
    Daemon(String),
}

impl Error {
    /// Wraps a system error with the failed action.
    pub fn io(action: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Error::Io { action: action.into(), source: source.into() }
    }
}
