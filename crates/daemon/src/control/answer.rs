//! What a command comes to.

use serde_json::Value;

use super::stream::{Enough, Sink};
use super::{Command, Refused};
use crate::events::Listener;

/// Carries out a command.
pub type Handler = dyn Fn(Command) -> Result<Answer, Refused> + Send + Sync;

/// What a command comes to.
pub enum Answer {
    /// A document.
    Document(Value),
    /// A document about what has begun.
    Begun(Value),
    /// A text of this type.
    Text(&'static str, String),
    /// What happens from now on, until the client goes.
    Events(Listener),
    /// Lines of text, sent as they come about, until they or the client end.
    Lines(Box<dyn FnOnce(Sink, Enough) + Send>),
}

impl From<Value> for Answer {
    fn from(value: Value) -> Self {
        Self::Document(value)
    }
}
