//! Errors of the control plane: what was being done, why it failed, what to try.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;

/// What a caller can tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// Another process uses the image.
    Locked,
    /// The caller asked for something that cannot be.
    Invalid,
    /// The host refused or failed.
    Host,
}

/// An error a person reads, in one line: `WHAT: WHY; TRY`.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    what: String,
    why: Box<dyn StdError + Send + Sync>,
    advice: Cow<'static, str>,
}

/// Result of a control-plane operation.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The caller asked for something that cannot be.
    pub fn invalid(
        what: impl Into<String>,
        why: impl Into<Box<dyn StdError + Send + Sync>>,
        advice: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self { kind: ErrorKind::Invalid, what: what.into(), why: why.into(), advice: advice.into() }
    }

    /// The host refused or failed.
    pub fn host(
        what: impl Into<String>,
        why: impl Into<Box<dyn StdError + Send + Sync>>,
        advice: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self { kind: ErrorKind::Host, ..Self::invalid(what, why, advice) }
    }

    /// Another process uses the image.
    pub fn locked(
        what: impl Into<String>,
        why: impl Into<Box<dyn StdError + Send + Sync>>,
        advice: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self { kind: ErrorKind::Locked, ..Self::invalid(what, why, advice) }
    }

    /// What a caller can tell apart.
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// What was being done; why it failed is the [source](StdError::source).
    pub fn what(&self) -> &str {
        &self.what
    }

    /// What to try.
    pub fn advice(&self) -> &str {
        &self.advice
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.what, self.why, self.advice)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(self.why.as_ref())
    }
}
