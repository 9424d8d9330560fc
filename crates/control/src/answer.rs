//! Answers to commands.

use serde_json::Value;

use super::stream::{Enough, Sink};
use super::{Command, Refused};
use crate::events::Listener;

/// Carries out a command.
pub type Handler = dyn Fn(Command) -> Result<Answer, Refused> + Send + Sync;

/// The answer to a command.
pub enum Answer {
    /// A JSON document.
    Document(Value),
    /// A JSON document about an operation that has been started.
    Begun(Value),
    /// A text with its content type.
    Text(&'static str, String),
    /// Events from now on, until the client disconnects.
    Events(Listener),
    /// A trace in zstd frames, sent as it is produced, until the source or the client ends.
    Trace(Box<dyn FnOnce(Sink, Enough) + Send>),
}

impl From<Value> for Answer {
    fn from(value: Value) -> Self {
        Self::Document(value)
    }
}
