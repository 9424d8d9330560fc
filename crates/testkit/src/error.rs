//! The one error type of the kit: a small kind to match on, the cause kept as source.
//!
//! Every variant says what was being done. A status byte other than OK is not an error here: it
//! is an answer, and the test decides whether it was the right one.

use std::io;

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong while playing the guest.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error("{action}")]
    Io {
        /// What was being done.
        action: String,
        /// The reason given by the system.
        #[source]
        source: io::Error,
    },
    /// The vhost-user conversation failed or the backend refused a message.
    #[error("vhost-user: {action}")]
    Vhost {
        /// The message that failed.
        action: String,
        /// The reason given by the wire crate.
        #[source]
        source: vhost::Error,
    },
    /// The backend did something the specification does not allow.
    #[error("backend broke the protocol: {0}")]
    Protocol(String),
    /// The backend closed the connection.
    #[error("backend closed the connection while {0}")]
    Disconnected(String),
    /// Nothing happened in the time given.
    #[error("timeout after {timeout_ms} ms while {action}")]
    Timeout {
        /// What was being waited for.
        action: String,
        /// How long.
        timeout_ms: u64,
    },
    /// The request was completed in the ring but no call was signalled although one was asked for.
    #[error("a completion arrived without a call on queue {queue}")]
    LostCall {
        /// The queue that was waited on.
        queue: usize,
    },
    /// Data read back is not the data written.
    #[error("verify: {0}")]
    Verify(String),
    /// The kit was asked for something it cannot do (too large, not negotiated, wrong state).
    #[error("misuse: {0}")]
    Misuse(String),
    /// The daemon did not start, or ended when it should not.
    #[error("daemon: {0}")]
    Daemon(String),
}

impl Error {
    /// Wraps a system error with what was being done.
    pub fn io(action: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Error::Io { action: action.into(), source: source.into() }
    }

    /// Wraps an error of the wire crate with the message that failed.
    pub fn vhost(action: impl Into<String>, source: vhost::Error) -> Self {
        Error::Vhost { action: action.into(), source }
    }

    /// The whole chain on one line, for messages that leave the `source()` convention.
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        text
    }
}
